#include "source.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "common.h"
#include "interrupt.h"
#include "penstock/diagnosis.h"

namespace penstock::cli {

namespace {

class StoreSource final : public Source {
 public:
  StoreSource(const Context& context, StoreSlice slice, Deadline deadline)
      : context_(context), slice_(std::move(slice)), deadline_(deadline) {}

  std::optional<std::uint64_t> size_bytes() const override { return slice_.extent.size_bytes; }

  Result<std::uint64_t> fill(Region memory) override {
    const std::uint64_t bytes = std::min<std::uint64_t>(memory.size_bytes, slice_.extent.size_bytes - position_);
    if (Status status = read({Extent{position_, bytes}}, memory); !status.ok()) return status.error();
    position_ += bytes;
    return bytes;
  }

  Result<std::vector<Extent>> fill_data(Region memory) override {
    std::vector<Extent> runs;
    std::uint64_t filled = 0;
    while (filled < memory.size_bytes && runs.size() < most_runs) {
      const std::optional<Extent> data = next_data();
      if (!data) {
        if (!slice_.holes.reaches(slice_.extent.end())) return became_shorter();
        position_ = slice_.extent.size_bytes;
        break;
      }
      runs.push_back({data->offset, std::min(data->size_bytes, memory.size_bytes - filled)});
      filled += runs.back().size_bytes;
      position_ = runs.back().end();
    }
    if (Status status = read(runs, memory); !status.ok()) return status.error();
    return runs;
  }

 private:
  static constexpr std::size_t most_runs = 4096;

  // From the position on, counted as the Source does.
  std::optional<Extent> next_data() const {
    const Extent& all = slice_.extent;
    std::optional<Extent> data = slice_.holes.next_data({all.offset + position_, all.size_bytes - position_});
    if (data) data->offset -= all.offset;
    return data;
  }

  Error became_shorter() const {
    return {.code = Code::truncated,
            .message = slice_.store.info().name + " became shorter during the copy",
            .hint = "copy it again when nothing writes to it"};
  }

  Status read(const std::vector<Extent>& runs, Region memory) {
    std::vector<Range> ranges;
    std::uint64_t filled = 0;
    for (const auto& [offset, bytes] : runs) {
      if (bytes == 0) continue;
      ranges.push_back(
          {.store = &slice_.store, .offset = slice_.extent.offset + offset, .memory = memory.part(filled, bytes)});
      filled += bytes;
    }
    if (ranges.empty()) return {};
    Result<Ticket> ticket = context_.submit(Direction::read, ranges, {.deadline_seconds = deadline_.request_seconds()});
    if (!ticket.ok()) return ticket.error();
    const Report report = await(std::move(*ticket));
    return report.ok() ? Status() : Status(*report.error);
  }

  const Context& context_;
  StoreSlice slice_;
  const Deadline deadline_;
};

class Stream final : public Source {
 public:
  Stream(int descriptor, std::string name, std::optional<std::uint64_t> size_bytes, Deadline deadline)
      : descriptor_(descriptor), name_(std::move(name)), size_bytes_(size_bytes), deadline_(deadline) {}
  ~Stream() override {
    if (descriptor_ != STDIN_FILENO) close(descriptor_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  std::optional<std::uint64_t> size_bytes() const override { return size_bytes_; }

  Result<std::uint64_t> fill(Region memory) override {
    std::uint64_t wanted = memory.size_bytes;
    if (size_bytes_) wanted = std::min(wanted, *size_bytes_ - position_);
    std::uint64_t filled = 0;
    while (filled < wanted) {
      const Result<std::uint64_t> got = read_some(memory.part(filled, wanted - filled));
      if (!got.ok()) return got.error();
      if (*got == 0) break;
      filled += *got;
      position_ += *got;
    }
    if (filled < wanted && size_bytes_) {
      return Error{.code = Code::truncated,
                   .message = name_ + " ended after " + std::to_string(position_) + " of " +
                              std::to_string(*size_bytes_) + " bytes",
                   .hint = "leave out --size to take all of " + name_};
    }
    return filled;
  }

 private:
  // A reader of a pipe may wait for ever; polling with a limit keeps it open to interruption and to its deadline.
  Result<std::uint64_t> read_some(Region memory) const {
    while (!interrupted()) {
      if (deadline_.passed()) {
        return Error{.code = Code::timed_out,
                     .message = "the deadline passed, and " + name_ + " had not ended",
                     .hint = "raise --deadline, or leave it out"};
      }
      pollfd input{.fd = descriptor_, .events = POLLIN, .revents = 0};
      if (poll(&input, 1, 100) <= 0) continue;
      const ssize_t got = read(descriptor_, memory.data, memory.size_bytes);
      if (got >= 0) return static_cast<std::uint64_t>(got);
      if (errno == EBADF) return closed_stream(name_);
      if (errno != EINTR && errno != EAGAIN) return system_error(errno, "read " + name_);
    }
    return interrupted_error();
  }

  const int descriptor_;
  const std::string name_;
  const std::optional<std::uint64_t> size_bytes_;
  const Deadline deadline_;
};

class PatternSource final : public Source {
 public:
  explicit PatternSource(Pattern pattern) : pattern_(pattern) {}

  std::optional<std::uint64_t> size_bytes() const override { return pattern_.size_bytes; }

  Result<std::uint64_t> fill(Region memory) override {
    const std::uint64_t bytes = std::min<std::uint64_t>(memory.size_bytes, pattern_.size_bytes - position_);
    for (std::uint64_t at = 0; at < bytes;) {
      const std::uint64_t position = position_ + at;
      const std::uint64_t value = word(position / sizeof(std::uint64_t));
      const std::uint64_t skip = position % sizeof value;
      const std::uint64_t length = std::min<std::uint64_t>(sizeof value - skip, bytes - at);
      std::memcpy(memory.data + at, reinterpret_cast<const std::byte*>(&value) + skip, length);
      at += length;
    }
    position_ += bytes;
    return bytes;
  }

 private:
  // SplitMix64: any word of the sequence without those before it.
  std::uint64_t word(std::uint64_t index) const {
    std::uint64_t z = pattern_.seed + (index + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  Pattern pattern_;
};

// Where files are made as they are read. Their size is 0, or that of a page, whatever there is to be read.
constexpr std::array<std::string_view, 7> made_file_systems = {"proc",       "sysfs",  "debugfs", "tracefs",
                                                               "securityfs", "cgroup", "cgroup2"};
bool makes_files(const struct statfs& system) {
  switch (static_cast<std::uint32_t>(system.f_type)) {
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
    case DEBUGFS_MAGIC:
    case TRACEFS_MAGIC:
    case SECURITYFS_MAGIC:
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
      return true;
    default:
      return false;
  }
}

bool is_made_as_it_is_read(int file) {
  struct statfs system {};
  struct stat status {};
  char byte = 0;
  if (fstatfs(file, &system) != 0) return false;
  return makes_files(system) || (fstat(file, &status) == 0 && status.st_size == 0 && pread(file, &byte, 1, 0) == 1);
}

// A character device may have no end, so it needs a size.
bool is_stream_by_kind(const struct stat& status, std::optional<std::uint64_t> size_bytes) {
  return S_ISFIFO(status.st_mode) || (S_ISCHR(status.st_mode) && size_bytes);
}

}  // namespace

Result<std::vector<Extent>> Source::fill_data(Region memory) {
  const std::uint64_t begin = position_;
  const Result<std::uint64_t> filled = fill(memory);
  if (!filled.ok()) return filled.error();
  return *filled == 0 ? std::vector<Extent>() : std::vector{Extent{begin, *filled}};
}

std::unique_ptr<Source> store_source(const Context& context, StoreSlice slice, Deadline deadline) {
  return std::make_unique<StoreSource>(context, std::move(slice), deadline);
}

bool names_stream(const std::string& name, std::optional<std::uint64_t> size_bytes) {
  if (name == "-") return true;
  const std::string path = local_path(name);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return false;
  if (is_stream_by_kind(status, size_bytes)) return true;
  if (!S_ISREG(status.st_mode)) return false;
  const Result<MountFacts> mount = find_mount(path);  // from the kernel's list: statfs would ask a server
  return mount.ok() && std::ranges::find(made_file_systems, mount->file_system) != made_file_systems.end();
}

Error closed_stream(const std::string& name) {
  return {.code = Code::io_error,
          .system_error = EBADF,
          .message = name + " is closed",
          .hint = "whoever starts the command has to open it; /dev/null will do"};
}

Result<std::unique_ptr<Source>> open_stream(const std::string& name, std::optional<std::uint64_t> size_bytes,
                                            Deadline deadline) {
  if (name == "-") {
    return std::unique_ptr<Source>(std::make_unique<Stream>(STDIN_FILENO, "standard input", size_bytes, deadline));
  }
  const std::string path = local_path(name);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return std::unique_ptr<Source>();
  const bool is_stream = is_stream_by_kind(status, size_bytes);
  if (!is_stream && !S_ISREG(status.st_mode)) return std::unique_ptr<Source>();
  // A pipe that nobody writes to yet is waited for by poll, which can be interrupted.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return system_error(errno, "open " + name);
  auto stream = std::make_unique<Stream>(file, name, size_bytes, deadline);
  if (!is_stream && !is_made_as_it_is_read(file)) return std::unique_ptr<Source>();
  return std::unique_ptr<Source>(std::move(stream));
}

std::unique_ptr<Source> pattern_source(Pattern pattern) {
  return std::make_unique<PatternSource>(pattern);
}

}  // namespace penstock::cli
