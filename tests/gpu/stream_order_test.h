// For tests of requests in the order of a CUDA stream.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/stream_order.h"
#include "gpu/gpu_test.h"

namespace penstock::test {

// A stream that does nothing until it is let go: work of the user's that takes long.
class Blocker {
 public:
  Blocker(cuda::Device& gpu, cuda::CuStream stream) : order_(cuda::StreamOrder::begin(gpu, stream).value()) {}
  void let_go() { order_->release(); }

 private:
  std::unique_ptr<cuda::StreamOrder> order_;
};

class InStreamOrder : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    options_.lanes = 2;
    write_file(folder_.path("file"), content(1, 0, 4 * mib));
  }

  cuda::CuResult wait_for(cuda::CuStream stream) {
    const cuda::Current current(gpu());
    return driver_->api().stream_synchronize(stream);
  }

  Result<Ticket> read_in_order(const Context& context, const Store& store, Region memory, cuda::CuStream stream,
                               double deadline = 0) {
    const Range range{&store, 0, memory};
    RequestOptions options;
    options.stream = CudaStream{stream};
    options.deadline_seconds = deadline;
    return context.submit(Direction::read, {&range, 1}, options);
  }
};

}  // namespace penstock::test
