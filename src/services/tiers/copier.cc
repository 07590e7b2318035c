#include "services/tiers/copier.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/unique_fd.h"
#include "penstock/checksum.h"
#include "services/tiers/fault_point.h"

namespace penstock::tiers {
namespace {

constexpr std::uint64_t window_bytes = 8 << 20;
constexpr std::size_t windows = 4;
constexpr std::size_t reads_ahead = 2;
// Files up to this are read and written many at a time.
constexpr std::uint64_t small_bytes = 1 << 20;
constexpr std::size_t small_files = 64;
constexpr std::uint64_t page_bytes = 4096;
// How much may have to be copied again after a crash.
constexpr std::uint64_t checkpoint_bytes = 1ULL << 30;

std::uint64_t page_up(std::uint64_t bytes) {
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

Error failure(const Report& report, const std::string& what) {
  Error error = report.error.value_or(Error{Code::internal, 0, "the request failed", ""});
  error.message = what + ": " + error.message;
  return error;
}

void add_zeros(Checksum& sum, std::uint64_t bytes) {
  static constexpr std::array<std::byte, 1 << 16> zeros{};
  for (; bytes > 0; bytes -= std::min<std::uint64_t>(bytes, zeros.size())) {
    sum.add({zeros.data(), std::min<std::uint64_t>(bytes, zeros.size())});
  }
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
  Cutter(int fd, std::uint64_t size_bytes) : fd_(fd), size_bytes_(size_bytes), stretch_(next_data(fd, 0, size_bytes)) {}

  // Empty at the end.
  Stretch next() {
    if (stretch_.begin == stretch_.end) stretch_ = next_data(fd_, stretch_.end, size_bytes_);
    const std::uint64_t end = std::min(stretch_.end, (stretch_.begin / window_bytes + 1) * window_bytes);
    return {std::exchange(stretch_.begin, end), end};
  }

 private:
  int fd_;
  std::uint64_t size_bytes_;
  Stretch stretch_;
};

bool is_sparse(const struct stat& status) {
  return static_cast<std::uint64_t>(status.st_blocks) * 512 < static_cast<std::uint64_t>(status.st_size);
}

bool is_small(const FileCopy& file) {
  return file.entry->size_bytes() <= small_bytes && !is_sparse(file.entry->status) && file.done_bytes == 0;
}

// A file of our own that nobody else knows: opening it as a store, which looks whether a device stands on it, would
// take longer than writing it. All of them are synced together, and read back past the page cache.
Status write_small(const std::string& path, Region memory) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return system_error(errno, "open " + path);
  for (std::size_t at = 0; at < memory.size_bytes;) {
    const ssize_t written = ::pwrite(file.get(), memory.data + at, memory.size_bytes - at, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_error(written == 0 ? ENOSPC : errno, "write " + path);
    at += static_cast<std::size_t>(written);
  }
  return {};
}

Status take_extended_attributes(int from, int to, const std::string& path) {
  std::array<char, 65536> names{};
  const ssize_t length = ::flistxattr(from, names.data(), names.size());
  if (length < 0) return errno == ENOTSUP ? Status() : system_error(errno, "list the attributes of " + path);
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

}  // namespace

Status take_attributes(const std::string& from, const std::string& to, const struct stat& status) {
  const UniqueFd source(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const UniqueFd target(::open(to.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!source || !target) return system_error(errno, "open " + (source ? to : from));
  struct stat own = {};
  if (::fstat(target.get(), &own) != 0) return system_error(errno, "look at " + to);
  if ((own.st_uid != status.st_uid || own.st_gid != status.st_gid) &&
      ::fchown(target.get(), status.st_uid, status.st_gid) != 0) {
    return system_error(errno, "give " + to + " its owner", "run as root, or as the owner of the file");
  }
  if (::fchmod(target.get(), status.st_mode & 07777) != 0) return system_error(errno, "give " + to + " its mode");
  if (Status taken = take_extended_attributes(source.get(), target.get(), to); !taken) return taken;
  const std::array<timespec, 2> times = {status.st_atim, status.st_mtim};
  if (::futimens(target.get(), times.data()) != 0) return system_error(errno, "give " + to + " its times");
  return {};
}

Status Copier::make_buffers() {
  while (buffers_.size() < windows) {
    auto buffer = context_.allocate(Domain::host(), window_bytes);
    if (!buffer) return buffer.error();
    buffers_.push_back(std::move(*buffer));
  }
  return {};
}

Status Copier::copy(std::span<FileCopy> files, const Progress& progress, const Checkpoint& checkpoint) {
  if (Status made = make_buffers(); !made) return made;
  for (std::size_t begin = 0; begin < files.size();) {
    std::size_t end = begin;
    for (std::uint64_t bytes = 0; end < files.size() && end - begin < small_files && is_small(files[end]); ++end) {
      bytes += page_up(files[end].entry->size_bytes());
      if (bytes > window_bytes) break;
    }
    Status done;
    if (end == begin) {
      done = copy_large(files[end++], progress, files.size() == 1 ? checkpoint : Checkpoint());
    } else {
      done = copy_small(files.subspan(begin, end - begin), progress);
    }
    if (!done) return done;
    begin = end;
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
  const UniqueFd holes(::open(file.from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!holes) return system_error(errno, "open " + file.from);
  auto source = context_.open(file.from, {.descriptor = holes.get()});
  if (!source) return source.error();
  // Room for all of it, so that a full disk is known before the first byte.
  auto target =
      context_.open(file.to, {.access = Access::create, .size_bytes = is_sparse(file.entry->status) ? 0 : size});
  if (!target) return target.error();

  Checksum sum;
  std::uint64_t summed = 0;
  std::uint64_t written = 0;
  Cutter cutter(holes.get(), size);
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
    if (turn.write.wait() != Outcome::done) return failure(turn.write.report(), "write " + file.to);
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
    if (turn.read.wait() != Outcome::done) return fail(failure(turn.read.report(), "read " + file.from));
    turn.read = {};
    const Region memory = buffers_[worked % windows].region().part(0, length);
    add_zeros(sum, turn.stretch.begin - summed);
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
    if (checkpoint && written >= checkpoint_bytes && turn.stretch.end < size) {
      for (Turn& other : turns) {
        if (Status done = finish_write(other); !done) return fail(done.error());
      }
      if (Status done = target->commit(); !done) return fail(done.error());
      if (Status done = checkpoint(turn.stretch.end); !done) return fail(done.error());
      written = 0;
    }
  }
  for (Turn& turn : turns) {
    if (Status done = finish_write(turn); !done) return fail(done.error());
  }
  add_zeros(sum, size - summed);
  file.checksum = sum.hex();
  *target = {};
  if (::truncate(file.to.c_str(), static_cast<off_t>(size)) != 0)
    return system_error(errno, "set the size of " + file.to);
  return take_attributes(file.from, file.to, file.entry->status);
}

Status Copier::copy_small(std::span<FileCopy> files, const Progress& progress) {
  const Region memory = buffers_[0].region();
  std::vector<Store> sources;
  std::vector<Range> reads;
  sources.reserve(files.size());  // ranges point into them
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
  for (const FileCopy& file : files) {
    const std::uint64_t size = file.entry->size_bytes();
    if (size == 0) continue;
    auto source = context_.open(file.from);
    if (!source) return source.error();
    sources.push_back(std::move(*source));
    reads.push_back({&sources.back(), 0, memory.part(at, size)});
    at += page_up(size);
    bytes += size;
  }
  if (!reads.empty()) {
    if (const Report report = context_.transfer(Direction::read, reads); !report.ok()) {
      return failure(report, "read " + files.front().from + " and others");
    }
  }
  std::size_t read = 0;
  for (FileCopy& file : files) {
    Checksum sum;
    if (file.entry->size_bytes() != 0) {
      const Region part = reads[read++].memory;
      sum.add({part.data, part.size_bytes});
      if (Status written = write_small(file.to, part); !written) return written;
    }
    file.checksum = sum.hex();
    if (Status taken = take_attributes(file.from, file.to, file.entry->status); !taken) return taken;
  }
  progress(bytes);
  fault_point("copying");
  return pace_.after(bytes);
}

Result<std::string> Copier::sum_large(const std::string& path, const Progress& progress) {
  const UniqueFd holes(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status = {};
  if (!holes || ::fstat(holes.get(), &status) != 0) return system_error(errno, "open " + path);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  auto store = context_.open(path, {.descriptor = holes.get()});
  if (!store) return store.error();
  Cutter cutter(holes.get(), size);
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
    add_zeros(sum, stretch.begin - summed);
    sum.add({buffers_[worked % windows].region().data, length});
    summed = stretch.end;
    progress(length);
    if (Status going = pace_.after(0); !going) return fail(going.error());
  }
  add_zeros(sum, size - summed);
  return sum.hex();
}

Result<std::vector<std::string>> Copier::sum_small(std::span<const std::string> paths,
                                                   std::span<const std::uint64_t> sizes, const Progress& progress) {
  const Region memory = buffers_[0].region();
  std::vector<Store> stores;
  std::vector<Range> reads;
  stores.reserve(paths.size());
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> sums(paths.size(), Checksum().hex());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    auto store = context_.open(paths[i]);
    if (!store) return store.error();
    if (store->info().size_bytes != sizes[i]) {
      return Error{Code::changed, 0, paths[i] + " has another size than a moment ago", "nothing else may write there"};
    }
    if (sizes[i] == 0) continue;
    stores.push_back(std::move(*store));
    reads.push_back({&stores.back(), 0, memory.part(at, sizes[i])});
    at += page_up(sizes[i]);
    bytes += sizes[i];
  }
  if (!reads.empty()) {
    if (const Report report = context_.transfer(Direction::read, reads); !report.ok()) {
      return failure(report, "read " + paths.front() + " and others");
    }
  }
  for (std::size_t i = 0, read = 0; i < paths.size(); ++i) {
    if (sizes[i] == 0) continue;
    Checksum sum;
    sum.add({reads[read].memory.data, reads[read].memory.size_bytes});
    ++read;
    sums[i] = sum.hex();
  }
  progress(bytes);
  if (Status going = pace_.after(0); !going) return std::move(going).error();
  return sums;
}

Result<std::vector<std::string>> Copier::sums(std::span<const FileCopy> files, bool of_targets,
                                              const Progress& progress) {
  if (Status made = make_buffers(); !made) return std::move(made).error();
  std::vector<std::string> all;
  for (std::size_t begin = 0; begin < files.size();) {
    std::vector<std::string> paths;
    std::vector<std::uint64_t> sizes;
    std::size_t end = begin;
    for (std::uint64_t bytes = 0; end < files.size() && end - begin < small_files; ++end) {
      const std::uint64_t size = files[end].entry->size_bytes();
      bytes += page_up(size);
      if (size > small_bytes || bytes > window_bytes) break;
      paths.push_back(of_targets ? files[end].to : files[end].from);
      sizes.push_back(size);
    }
    if (end == begin) {
      auto sum = sum_large(of_targets ? files[end].to : files[end].from, progress);
      if (!sum) return std::move(sum).error();
      all.push_back(std::move(*sum));
      ++end;
    } else {
      auto some = sum_small(paths, sizes, progress);
      if (!some) return some;
      all.insert(all.end(), some->begin(), some->end());
    }
    begin = end;
  }
  return all;
}

Status Copier::verify(std::span<const FileCopy> files, const Progress& progress) {
  const auto found = sums(files, true, progress);
  if (!found) return found.error();
  for (std::size_t i = 0; i < files.size(); ++i) {
    if ((*found)[i] == files[i].checksum) continue;
    return Error{Code::io_error, 0,
                 files[i].to + " is not what was written: its checksum is " + (*found)[i] + ", that of " +
                     files[i].from + " is " + files[i].checksum,
                 "check the disk of that tier; the unit has not moved"};
  }
  return {};
}

Status Copier::add_up(std::span<FileCopy> files, const Progress& progress) {
  auto found = sums(files, false, progress);
  if (!found) return std::move(found).error();
  for (std::size_t i = 0; i < files.size(); ++i) files[i].checksum = std::move((*found)[i]);
  return {};
}

}  // namespace penstock::tiers
