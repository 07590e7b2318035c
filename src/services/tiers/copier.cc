#include "services/tiers/copier.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/uninterrupted.h"
#include "base/unique_fd.h"
#include "penstock/checksum.h"
#include "penstock/machine.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/side_by_side.h"

namespace penstock::tiers {
namespace {

constexpr std::uint64_t least_window_bytes = 1 << 20, most_window_bytes = 8 << 20;
constexpr std::size_t windows = 4;
constexpr std::size_t reads_ahead = 2;
// Files up to this are copied side by side, so many at a time.
constexpr std::uint64_t small_bytes = 1 << 20;
constexpr std::size_t small_files = 256;
// Files that are read together are open together. Of few files no more are than threads would have open.
constexpr std::size_t least_together = 16;
constexpr std::uint64_t page_bytes = 4096;
// How much may have to be copied again after a crash: this, or what a second brings.
constexpr std::uint64_t checkpoint_bytes = 1ULL << 30;
constexpr Duration between_checkpoints = std::chrono::seconds(1);

std::uint64_t page_up(std::uint64_t bytes) {
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

Error failure(const Report& report, const std::string& what) {
  Error error = report.error.value_or(Error{Code::internal, 0, "the request failed", ""});
  error.message = what + ": " + error.message;
  return error;
}

// A hole costs no disk space, and may be so long that this takes hours.
Status add_zeros(Checksum& sum, std::uint64_t bytes, Pace& pace) {
  static constexpr std::array<std::byte, 1 << 16> zeros{};
  constexpr std::uint64_t between_questions_bytes = 64 << 20;
  for (std::uint64_t added = 0; added < bytes;) {
    const std::uint64_t length = std::min<std::uint64_t>(bytes - added, zeros.size());
    sum.add({zeros.data(), length});
    added += length;
    if (added % between_questions_bytes != 0) continue;
    if (Status going = pace.after(0); !going) return going;
  }
  return {};
}

struct Stretch {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The next stretch of data from an offset on; empty at the end. Where the file system does not tell, all is data.
Stretch next_data(int fd, std::uint64_t from, std::uint64_t size_bytes) {
  if (from >= size_bytes) return {size_bytes, size_bytes};
  const off_t data = ::lseek(fd, static_cast<off_t>(from), SEEK_DATA);
  if (data < 0) return errno == ENXIO ? Stretch{size_bytes, size_bytes} : Stretch{from, size_bytes};
  const off_t hole = ::lseek(fd, data, SEEK_HOLE);
  const std::uint64_t end =
      hole < 0 ? size_bytes : std::min<std::uint64_t>(static_cast<std::uint64_t>(hole), size_bytes);
  // Operations begin at whole pages, whatever the file system's blocks are.
  const std::uint64_t begin = std::max(from, static_cast<std::uint64_t>(data) / page_bytes * page_bytes);
  return {begin, std::max(begin, end)};
}

// Cuts the data of a file into windows, in order.
class Cutter {
 public:
  Cutter(int fd, std::uint64_t size_bytes, std::uint64_t window_bytes)
      : fd_(fd), size_bytes_(size_bytes), window_bytes_(window_bytes), stretch_(next_data(fd, 0, size_bytes)) {}

  // Empty at the end.
  Stretch next() {
    if (stretch_.begin == stretch_.end) stretch_ = next_data(fd_, stretch_.end, size_bytes_);
    const std::uint64_t end = std::min(stretch_.end, (stretch_.begin / window_bytes_ + 1) * window_bytes_);
    return {std::exchange(stretch_.begin, end), end};
  }

 private:
  int fd_;
  std::uint64_t size_bytes_, window_bytes_;
  Stretch stretch_;
};

bool is_sparse(const struct stat& status) {
  return static_cast<std::uint64_t>(status.st_blocks) * 512 < static_cast<std::uint64_t>(status.st_size);
}

bool is_small(const FileCopy& file) {
  return file.entry->size_bytes() <= small_bytes && !is_sparse(file.entry->status) && file.done_bytes == 0;
}

// The memory that each of some small files is read into: pages of its own, so that it can be read past the page cache.
std::vector<std::byte*> places_for(std::span<FileCopy* const> files, Region memory) {
  std::vector<std::byte*> places;
  places.reserve(files.size());
  std::byte* at = memory.data;
  for (const FileCopy* file : files) {
    places.push_back(at);
    at += page_up(file->entry->size_bytes());
  }
  return places;
}

std::uint64_t total_bytes(std::span<FileCopy* const> files) {
  std::uint64_t bytes = 0;
  for (const FileCopy* file : files) bytes += file->entry->size_bytes();
  return bytes;
}

// All of a file that has `size` bytes. REQUIRES: room for whole pages.
Status read_all(int fd, std::byte* place, std::uint64_t size, const std::string& path) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return system_error(errno, "look at " + path);
  std::uint64_t at = 0;
  while (at < size && static_cast<std::uint64_t>(status.st_size) == size) {
    const ssize_t got = ::pread(fd, place + at, page_up(size) - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, "read " + path);
    if (got == 0) break;
    at += static_cast<std::uint64_t>(got);
  }
  if (at == size && static_cast<std::uint64_t>(status.st_size) == size) return {};
  return Error{Code::changed, 0, path + " has another size than a moment ago", "nothing else may write there"};
}

// One end of a copy, open for reading. The source is the file that was looked at, whatever its name means by now.
Result<UniqueFd> open_end(const FileCopy& file, bool is_source, int flags = 0) {
  if (is_source) return open_entry(file.from, *file.entry, flags);
  UniqueFd opened = file.to.open(O_RDONLY | O_NONBLOCK | flags);
  if (!opened) return system_error(errno, "open " + file.to.text());
  return opened;
}

// Reads files past the page cache, as many at once as can be. Returns which of them were read whole.
std::vector<char> read_together(DirectReads& reads, std::span<FileCopy* const> files,
                                std::span<std::byte* const> places, bool is_source) {
  std::vector<char> is_read(files.size());
  const std::size_t at_once = std::clamp(files.size() / 4, least_together, DirectReads::most);
  for (std::size_t begin = 0; begin < files.size(); begin += at_once) {
    const std::size_t end = std::min(files.size(), begin + at_once);
    std::vector<UniqueFd> opened;
    std::vector<DirectReads::Read> asked;
    std::vector<std::size_t> numbers;
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint64_t size = files[i]->entry->size_bytes();
      struct stat status = {};
      auto file = open_end(*files[i], is_source, O_DIRECT);
      if (!file || ::fstat(file->get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) != size) continue;
      asked.push_back({.file = file->get(), .place = places[i], .bytes = static_cast<std::uint32_t>(page_up(size))});
      opened.push_back(std::move(*file));
      numbers.push_back(i);
    }
    reads.run(asked);
    for (std::size_t k = 0; k < asked.size(); ++k) {
      const std::uint64_t size = files[numbers[k]]->entry->size_bytes();
      is_read[numbers[k]] = asked[k].got >= 0 && static_cast<std::uint64_t>(asked[k].got) == size ? 1 : 0;
    }
  }
  return is_read;
}

// The same, from the disk. Not every file system reads past the page cache; what is cached there is dropped before.
Status read_from_disk(const FileCopy& copy, bool is_source, std::byte* place, std::uint64_t size) {
  const std::string path = (is_source ? copy.from : copy.to).text();
  auto file = open_end(copy, is_source, O_DIRECT);
  if (file) {
    Status read = read_all(file->get(), place, size, path);
    if (read || read.error().system_error != EINVAL) return read;
  } else if (file.error().system_error != EINVAL) {
    return std::move(file).error();
  }
  file = open_end(copy, is_source);
  if (!file) return std::move(file).error();
  static_cast<void>(::posix_fadvise(file->get(), 0, 0, POSIX_FADV_DONTNEED));
  return read_all(file->get(), place, size, path);
}

Status write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t written = ::pwrite(fd, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_error(written == 0 ? ENOSPC : errno, "write " + path);
    at += static_cast<std::size_t>(written);
  }
  return {};
}

std::string sum_of(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.hex();
}

Status take_extended_attributes(int from, int to, const std::string& path) {
  const auto failed = [&] {
    return errno == ENOTSUP ? Status() : system_error(errno, "list the attributes of " + path);
  };
  ssize_t length = ::flistxattr(from, nullptr, 0);  // most files have none
  if (length == 0) return {};
  if (length < 0) return failed();
  std::vector<char> names(65536);
  length = ::flistxattr(from, names.data(), names.size());
  if (length < 0) return failed();
  std::vector<char> value;
  for (const char* name = names.data(); name < names.data() + length;
       name += std::char_traits<char>::length(name) + 1) {
    value.resize(65536);
    const ssize_t size = ::fgetxattr(from, name, value.data(), value.size());
    if (size < 0) continue;  // it was removed, or is not for us
    if (::fsetxattr(to, name, value.data(), static_cast<std::size_t>(size), 0) == 0) continue;
    const bool is_ours =
        std::string_view(name).starts_with("user.") || std::string_view(name).starts_with("system.posix");
    if (is_ours) {
      return system_error(errno, "give " + path + " its attribute " + name,
                          errno == ENOTSUP ? "the file system of that tier has none; use another, or remove them" : "");
    }
  }
  return {};
}

Status give_attributes(int from, int to, const struct stat& status, const std::string& path) {
  struct stat own = {};
  if (::fstat(to, &own) != 0) return system_error(errno, "look at " + path);
  const bool is_owned = own.st_uid == status.st_uid && own.st_gid == status.st_gid;
  if (!is_owned && ::fchown(to, status.st_uid, status.st_gid) != 0) {
    return system_error(errno, "give " + path + " its owner", "run as root, or as the owner of the file");
  }
  // After its owner, who takes some bits away.
  const bool has_mode = is_owned && own.st_mode == status.st_mode;
  if (!has_mode && ::fchmod(to, status.st_mode & 07777) != 0) return system_error(errno, "give " + path + " its mode");
  if (Status taken = take_extended_attributes(from, to, path); !taken) return taken;
  const std::array<timespec, 2> times = {status.st_atim, status.st_mtim};
  if (::futimens(to, times.data()) != 0) return system_error(errno, "give " + path + " its times");
  return {};
}

// The source through the page cache: where it lies there already it need not be read again, and soon it is gone from
// there. The copy is a file of our own that nobody else knows; all of them are synced together.
Status copy_small(FileCopy& file, std::byte* place) {
  const std::uint64_t size = file.entry->size_bytes();
  UniqueFd opened;
  int source = file.source;
  if (source < 0) {
    auto again = open_end(file, true);
    if (!again) return std::move(again).error();
    opened = std::move(*again);
    source = opened.get();
  }
  const UniqueFd target = file.to.open(O_WRONLY);
  if (!target) return system_error(errno, "open " + file.to.text());
  if (Status read = read_all(source, place, size, file.from.text()); !read) return read;
  file.checksum = sum_of({place, size});
  if (Status written = write_all(target.get(), {place, size}, file.to.text()); !written) return written;
  return give_attributes(source, target.get(), file.entry->status, file.to.text());
}

}  // namespace

Status take_attributes(const PathBeneath& from, const PathBeneath& to, const Entry& entry) {
  const auto source = open_entry(from, entry);
  if (!source) return source.error();
  const UniqueFd target = to.open(O_RDONLY | O_DIRECTORY);
  if (!target) return system_error(errno, "open " + to.text());
  return give_attributes(source->get(), target.get(), entry.status, to.text());
}

Status Copier::make_buffers() {
  if (buffers_.size() == windows) return {};
  const std::uint64_t available = Machine::available_memory_bytes();
  const std::uint64_t share = available / windows / least_window_bytes * least_window_bytes;
  if (share == 0) {
    return Error{Code::out_of_memory, 0,
                 "reading files takes " + std::to_string(windows * least_window_bytes) + " bytes of memory, and " +
                     std::to_string(available) + " are available",
                 "raise the memory limit of the control group, or end other programs"};
  }
  buffers_.clear();
  while (buffers_.size() < windows) {
    auto buffer = context_.allocate(Domain::host(), std::min(share, most_window_bytes));
    if (!buffer) return buffer.error();
    buffers_.push_back(std::move(*buffer));
  }
  return {};
}

std::size_t Copier::small_group(std::span<FileCopy* const> files) const {
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  while (count < files.size() && count < small_files && is_small(*files[count])) {
    bytes += page_up(files[count]->entry->size_bytes());
    if (bytes > buffers_[0].size_bytes()) break;
    ++count;
  }
  return count;
}

Status Copier::copy(std::span<FileCopy* const> files, const Progress& progress, const Checkpoint& checkpoint) {
  if (Status made = make_buffers(); !made) return made;
  const bool is_single = files.size() == 1;
  while (!files.empty()) {
    const std::size_t count = std::max<std::size_t>(1, small_group(files));
    const auto group = files.first(count);
    files = files.subspan(count);
    if (!is_small(*group.front())) {
      if (Status done = copy_large(*group.front(), progress, is_single ? checkpoint : Checkpoint()); !done) return done;
      continue;
    }
    const auto places = places_for(group, buffers_[0].region());
    side_by_side(count, [&](std::size_t i) { group[i]->status = copy_small(*group[i], places[i]); });
    progress(total_bytes(group));
    fault_point("copying");
    if (Status going = pace_.after(total_bytes(group)); !going) return going;
  }
  return {};
}

// Two windows are read ahead while two are written.
Status Copier::copy_large(FileCopy& file, const Progress& progress, const Checkpoint& checkpoint) {
  struct Turn {
    Stretch stretch;
    Ticket read;
    Ticket write;
  };
  const std::uint64_t size = file.entry->size_bytes();
  const std::string from = file.from.text();
  const std::string to = file.to.text();
  const auto holes = open_end(file, true);
  if (!holes) return holes.error();
  auto source = context_.open(from, {.descriptor = holes->get()});
  if (!source) return source.error();
  const UniqueFd written_to = file.to.open(O_RDWR);
  if (!written_to) return system_error(errno, "open " + to);
  // Room for all of it, so that a full disk is known before the first byte.
  auto target = context_.open(to, {.access = Access::create,
                                   .size_bytes = is_sparse(file.entry->status) ? 0 : size,
                                   .descriptor = written_to.get()});
  if (!target) return target.error();

  Checksum sum;
  std::uint64_t summed = 0;
  std::uint64_t written = 0;  // since saved_at
  TimePoint saved_at = Clock::now();
  Cutter cutter(holes->get(), size, buffers_[0].size_bytes());
  std::array<Turn, windows> turns;
  std::size_t begun = 0;
  bool at_end = false;
  const auto cancel_all = [&] {
    for (Turn& turn : turns) {
      if (turn.read) turn.read.cancel();
      if (turn.write) turn.write.cancel();
    }
  };
  const auto fail = [&](Error error) -> Status {
    cancel_all();
    return error;
  };
  const auto finish_write = [&](Turn& turn) -> Status {
    if (!turn.write) return {};
    if (turn.write.wait() != Outcome::done) return failure(turn.write.report(), "write " + to);
    turn.write = {};
    return {};
  };
  for (std::size_t worked = 0;; ++worked) {
    while (!at_end && begun < worked + reads_ahead) {
      Turn& turn = turns[begun % windows];
      if (Status done = finish_write(turn); !done) return fail(done.error());
      turn.stretch = cutter.next();
      at_end = turn.stretch.begin == turn.stretch.end;
      if (at_end) break;
      const Range range{&*source, turn.stretch.begin,
                        buffers_[begun % windows].region().part(0, turn.stretch.end - turn.stretch.begin)};
      auto ticket = context_.submit(Direction::read, {&range, 1});
      if (!ticket) return fail(ticket.error());
      turn.read = std::move(*ticket);
      ++begun;
    }
    if (worked == begun) break;
    Turn& turn = turns[worked % windows];
    const std::uint64_t length = turn.stretch.end - turn.stretch.begin;
    if (turn.read.wait() != Outcome::done) return fail(failure(turn.read.report(), "read " + from));
    turn.read = {};
    const Region memory = buffers_[worked % windows].region().part(0, length);
    if (Status going = add_zeros(sum, turn.stretch.begin - summed, pace_); !going) return fail(going.error());
    sum.add({memory.data, length});
    summed = turn.stretch.end;
    if (turn.stretch.end > file.done_bytes) {
      const Range range{&*target, turn.stretch.begin, memory};
      auto ticket = context_.submit(Direction::write, {&range, 1});
      if (!ticket) return fail(ticket.error());
      turn.write = std::move(*ticket);
      written += length;
    }
    progress(length);
    fault_point("copying");
    if (Status going = pace_.after(length); !going) {
      // What has been written so far need not be written again.
      for (Turn& other : turns) {
        if (Status done = finish_write(other); !done) return fail(done.error());
      }
      if (checkpoint && written != 0 && target->commit().ok()) static_cast<void>(checkpoint(turn.stretch.end));
      return fail(going.error());
    }
    const bool is_due = written >= checkpoint_bytes || Clock::now() - saved_at >= between_checkpoints;
    if (checkpoint && written != 0 && is_due && turn.stretch.end < size) {
      for (Turn& other : turns) {
        if (Status done = finish_write(other); !done) return fail(done.error());
      }
      if (Status done = target->commit(); !done) return fail(done.error());
      if (Status done = checkpoint(turn.stretch.end); !done) return fail(done.error());
      fault_point("saved");
      saved_at = Clock::now();
      written = 0;
    }
  }
  for (Turn& turn : turns) {
    if (Status done = finish_write(turn); !done) return fail(done.error());
  }
  if (Status going = add_zeros(sum, size - summed, pace_); !going) return going;
  file.checksum = sum.hex();
  *target = {};
  if (uninterrupted([&] { return ::ftruncate(written_to.get(), static_cast<off_t>(size)); }) != 0)
    return system_error(errno, "set the size of " + to);
  return give_attributes(holes->get(), written_to.get(), file.entry->status, to);
}

Result<std::string> Copier::sum_large(const FileCopy& file, End end, const Progress& progress) {
  const std::string path = (end == End::source ? file.from : file.to).text();
  const auto holes = open_end(file, end == End::source);
  if (!holes) return holes.error();
  struct stat status = {};
  if (::fstat(holes->get(), &status) != 0) return system_error(errno, "look at " + path);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  auto store = context_.open(path, {.descriptor = holes->get()});
  if (!store) return store.error();
  Cutter cutter(holes->get(), size, buffers_[0].size_bytes());
  std::array<Ticket, windows> tickets;
  std::array<Stretch, windows> stretches;
  Checksum sum;
  std::uint64_t summed = 0;
  std::size_t begun = 0;
  bool at_end = false;
  const auto fail = [&](Error error) -> Error {
    for (Ticket& ticket : tickets) {
      if (ticket) ticket.cancel();
    }
    return error;
  };
  for (std::size_t worked = 0;; ++worked) {
    while (!at_end && begun < worked + windows - 1) {
      const Stretch stretch = cutter.next();
      at_end = stretch.begin == stretch.end;
      if (at_end) break;
      const Range range{&*store, stretch.begin,
                        buffers_[begun % windows].region().part(0, stretch.end - stretch.begin)};
      auto ticket = context_.submit(Direction::read, {&range, 1});
      if (!ticket) return fail(ticket.error());
      tickets[begun % windows] = std::move(*ticket);
      stretches[begun++ % windows] = stretch;
    }
    if (worked == begun) break;
    const Stretch stretch = stretches[worked % windows];
    Ticket& ticket = tickets[worked % windows];
    if (ticket.wait() != Outcome::done) return fail(failure(ticket.report(), "read " + path));
    ticket = {};
    const std::uint64_t length = stretch.end - stretch.begin;
    if (Status going = add_zeros(sum, stretch.begin - summed, pace_); !going) return fail(going.error());
    sum.add({buffers_[worked % windows].region().data, length});
    summed = stretch.end;
    progress(length);
    if (Status going = pace_.after(0); !going) return fail(going.error());
  }
  if (Status going = add_zeros(sum, size - summed, pace_); !going) return std::move(going).error();
  return sum.hex();
}

Status Copier::sum(std::span<FileCopy* const> files, End end, const Progress& progress, const Found& found) {
  if (Status made = make_buffers(); !made) return made;
  const bool is_source = end == End::source;
  while (!files.empty()) {
    const std::size_t count = std::max<std::size_t>(1, small_group(files));
    const auto group = files.first(count);
    files = files.subspan(count);
    if (!is_small(*group.front())) {
      auto sum = sum_large(*group.front(), end, progress);
      if (!sum) return std::move(sum).error();
      found(*group.front(), std::move(*sum));
      continue;
    }
    const auto places = places_for(group, buffers_[0].region());
    std::vector<char> is_read(count);
    if (count > least_together) {
      if (!reads_) reads_.emplace();
      is_read = read_together(*reads_, group, places, is_source);
    }
    side_by_side(count, [&](std::size_t i) {
      FileCopy& file = *group[i];
      if (!file.status) return;
      if (is_read[i] == 0) file.status = read_from_disk(file, is_source, places[i], file.entry->size_bytes());
      if (file.status) found(file, sum_of({places[i], file.entry->size_bytes()}));
    });
    progress(total_bytes(group));
    if (Status going = pace_.after(0); !going) return going;
  }
  return {};
}

Status Copier::verify(std::span<FileCopy* const> files, const Progress& progress) {
  return sum(files, End::target, progress, [](FileCopy& file, const std::string& found) {
    if (found == file.checksum) return;
    file.status = Error{Code::io_error, 0,
                        file.to.text() + " is not what was written: its checksum is " + found + ", that of " +
                            file.from.text() + " is " + file.checksum,
                        "check the disk of that tier; the unit has not moved"};
  });
}

Status Copier::add_up(std::span<FileCopy* const> files, const Progress& progress) {
  const auto note = [](FileCopy& file, std::string found) { file.checksum = std::move(found); };
  if (Status summed = sum(files, End::source, progress, note); !summed) return summed;
  for (const FileCopy* file : files) {
    if (!file->status) return file->status;
  }
  return {};
}

}  // namespace penstock::tiers
