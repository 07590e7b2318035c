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
  explicit Comparison(const Context& context) : context_(context) {}
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;
  ~Comparison() { close_file(); }

  Status add(const Loaded& piece) {
    if (piece.packed_in != nullptr) return add_packed(piece);
    if (Status opened = open_again(piece); !opened.ok()) return opened;
    for (std::size_t done = 0; done < piece.memory.size_bytes;) {
      if (interrupted()) return interrupted_error();
      const std::size_t wanted = std::min(window_.size(), piece.memory.size_bytes - done);
      const Result<std::size_t> bytes = read_again(piece.offset + done, wanted);
      if (!bytes.ok()) return bytes.error();
      if (*bytes == 0) return mismatch(piece);
      const Result<std::span<const std::byte>> loaded = lens_.look(piece.memory.part(done, *bytes));
      if (!loaded.ok()) return loaded.error();
      file_.add({window_.data(), *bytes});
      memory_.add(*loaded);
      done += *bytes;
    }
    return file_.value() == memory_.value() ? Status() : mismatch(piece);
  }

  std::string checksum() const { return memory_.hex(); }

 private:
  // Some rows at a time.
  Status add_packed(const Loaded& piece) {
    constexpr std::uint64_t rows_bytes = 64 << 20;
    const TensorInfo& tensor = piece.packed_in->tensors()[piece.index];
    const std::uint64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const std::uint64_t row_bytes = tensor.size_bytes / rows;
    const std::uint64_t step = std::clamp<std::uint64_t>(rows_bytes / row_bytes, 1, rows);
    std::vector<std::byte> again(step * row_bytes);
    for (std::uint64_t row = 0; row < rows; row += step) {
      if (interrupted()) return interrupted_error();
      const std::uint64_t count = std::min(step, rows - row);
      TensorPart part{.tensor = piece.index, .memory = Region::host(again.data(), count * row_bytes)};
      if (count != rows) part.intervals = {{row, row + count}};
      const Result<Loading> loading = load(context_, *piece.packed_in, {&part, 1});
      if (!loading.ok()) return loading.error();
      loading->wait();
      if (const LoadReport report = loading->report(); !report.ok()) return *report.transfer.error;
      if (Status same = compare(piece, row * row_bytes, {again.data(), count * row_bytes}); !same.ok()) return same;
    }
    return {};
  }

  Status compare(const Loaded& piece, std::uint64_t begin, std::span<const std::byte> expected) {
    for (std::size_t done = 0; done < expected.size();) {
      const std::size_t bytes = std::min(Lens::piece_bytes, expected.size() - done);
      const Result<std::span<const std::byte>> loaded = lens_.look(piece.memory.part(begin + done, bytes));
      if (!loaded.ok()) return loaded.error();
      file_.add(expected.subspan(done, bytes));
      memory_.add(*loaded);
      done += bytes;
    }
    return file_.value() == memory_.value() ? Status() : mismatch(piece);
  }

  Status open_again(const Loaded& piece) {
    if ((fd_ >= 0 || store_) && piece.path == path_) return {};
    close_file();
    path_ = piece.path;
    if (!piece.is_file) {
      Result<Store> store = context_.open(path_);
      if (!store.ok()) return store.error();
      store_ = std::move(*store);
      return {};
    }
    fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) return system_error(errno, "open " + path_ + " to verify");
    return {};
  }

  void close_file() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    store_ = {};
  }

  // Into the window; says how much, which is nothing past the end of a file.
  Result<std::size_t> read_again(std::uint64_t offset, std::size_t wanted) {
    if (store_) {
      const Report report = context_.read(store_, offset, Region::host(window_.data(), wanted));
      if (!report.ok()) return *report.error;
      return wanted;
    }
    for (;;) {
      const ssize_t got = pread(fd_, window_.data(), wanted, static_cast<off_t>(offset));
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) return system_error(errno, "read " + path_ + " to verify");
      if (interrupted()) return interrupted_error();
    }
  }

  Error mismatch(const Loaded& piece) const {
    if (fd_ >= 0 && piece.packed_in == nullptr && piece.identity != nullptr && !same_content(fd_, *piece.identity)) {
      return {.code = Code::changed,
              .message = path_ + " was modified while it was loaded and verified",
              .hint = "load it again when nothing writes to it"};
    }
    return {.code = Code::io_error,
            .message = "the bytes in memory differ from " +
                       std::string(fd_ >= 0 && piece.packed_in == nullptr ? "a plain read of " : "another read of ") +
                       (piece.tensor.empty() ? "" : "tensor " + std::string(piece.tensor) + " of ") +
                       std::string(piece.path),
            .hint = "try --engine posix; if the bytes still differ, check the device"};
  }

  const Context& context_;
  Checksum memory_, file_;
  Lens lens_;
  std::vector<std::byte> window_ = std::vector<std::byte>(Lens::piece_bytes);
  std::string path_;
  int fd_ = -1;
  Store store_;  // where there is no file
};

}  // namespace

Verified compare_with_files(const Context& context, std::span<const Loaded> pieces) {
  Comparison comparison(context);
  for (const Loaded& piece : pieces) {
    if (Status status = comparison.add(piece); !status.ok()) return {comparison.checksum(), status.error()};
  }
  return {comparison.checksum(), std::nullopt};
}

}  // namespace penstock::cli
