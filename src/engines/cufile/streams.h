// StreamTransfers: cuFile's stream-ordered reads and writes. cuFile looks at sizes and offsets when the stream comes to
// the transfer, so they must live until then: they are kept here, each with an event behind the transfer.
//
// Thread safety: every call from any thread. Lifetime: ends before the Library; what a stream has not run by then is
// leaked rather than freed under cuFile's hands.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cuda/driver.h"
#include "engines/cufile/library.h"

namespace penstock::cufile {

// One transfer on a stream; copies mean the same one.
class StreamTransfer {
 public:
  struct State;
  explicit StreamTransfer(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Whether the stream has run it.
  bool finished() const;
  // Bytes moved, which may be fewer than asked for. REQUIRES: finished().
  Result<std::uint64_t> bytes() const;

 private:
  std::shared_ptr<State> state_;  // shared: cuFile writes to it even if the caller lets go
};

class StreamTransfers {
 public:
  // REQUIRES: the library's driver is open, the device active.
  StreamTransfers(const Library& library, cuda::Device& device) : library_(library), device_(device) {}
  ~StreamTransfers();
  StreamTransfers(const StreamTransfers&) = delete;
  StreamTransfers& operator=(const StreamTransfers&) = delete;

  // Tells cuFile of a stream before its first transfer, which it then sets up faster.
  Status register_stream(cuda::CuStream stream) const;
  void deregister_stream(cuda::CuStream stream) const;

  struct Range {
    CfHandle handle = nullptr;
    std::byte* base = nullptr;
    std::uint64_t memory_offset = 0;
    std::uint64_t file_offset = 0;
    std::uint64_t length = 0;
  };
  Result<StreamTransfer> read(const Range& range, cuda::CuStream stream);
  Result<StreamTransfer> write(const Range& range, cuda::CuStream stream);

 private:
  using Call = decltype(Api::read_async);
  Result<StreamTransfer> start(Call call, const Range& range, cuda::CuStream stream);
  void forget_finished();

  const Library& library_;
  cuda::Device& device_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<StreamTransfer::State>> pending_;
};

}  // namespace penstock::cufile
