#include "comparison.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "interrupt.h"
#include "penstock/checksum.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

// Whether a file is still the one that was opened, unmodified.
bool same_content(int fd, const Identity& identity) {
  const Result<Identity> now = Identity::of_file(fd);
  return now && *now == identity;
}

class Comparison {
 public:
  Comparison() = default;
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;
  ~Comparison() { close_file(); }

  Status add(const Loaded& piece) {
    if (Status opened = open_file(piece.path); !opened.ok()) return opened;
    for (std::size_t done = 0; done < piece.memory.size_bytes;) {
      if (interrupted()) return interrupted_error();
      const std::size_t wanted = std::min(window_.size(), piece.memory.size_bytes - done);
      const ssize_t got = pread(fd_, window_.data(), wanted, static_cast<off_t>(piece.offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return system_error(errno, "read " + path_ + " to verify");
      if (got == 0) return mismatch(piece);
      const auto bytes = static_cast<std::size_t>(got);
      const Result<std::span<const std::byte>> loaded = lens_.look(piece.memory.part(done, bytes));
      if (!loaded.ok()) return loaded.error();
      file_.add({window_.data(), bytes});
      memory_.add(*loaded);
      done += bytes;
    }
    return file_.value() == memory_.value() ? Status() : mismatch(piece);
  }

  std::string checksum() const { return memory_.hex(); }

 private:
  Status open_file(std::string_view path) {
    if (fd_ >= 0 && path == path_) return {};
    close_file();
    path_ = path;
    fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) return system_error(errno, "open " + path_ + " to verify");
    return {};
  }

  void close_file() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  Error mismatch(const Loaded& piece) const {
    if (piece.identity != nullptr && !same_content(fd_, *piece.identity)) {
      return {.code = Code::changed,
              .message = path_ + " was modified while it was loaded and verified",
              .hint = "load it again when nothing writes to it"};
    }
    return {.code = Code::io_error,
            .message = "the bytes in memory differ from those that a plain read of " +
                       (piece.tensor.empty() ? "" : "tensor " + std::string(piece.tensor) + " of ") + path_ + " gives",
            .hint = "try --engine posix; if the bytes still differ, check the device"};
  }

  Checksum memory_, file_;
  Lens lens_;
  std::vector<std::byte> window_ = std::vector<std::byte>(Lens::piece_bytes);
  std::string path_;
  int fd_ = -1;
};

}  // namespace

Verified compare_with_files(std::span<const Loaded> pieces) {
  Comparison comparison;
  for (const Loaded& piece : pieces) {
    if (Status status = comparison.add(piece); !status.ok()) return {comparison.checksum(), status.error()};
  }
  return {comparison.checksum(), std::nullopt};
}

}  // namespace penstock::cli
