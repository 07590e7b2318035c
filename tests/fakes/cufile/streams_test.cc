#include "engines/cufile/streams.h"

#include "engines/cufile/store.h"
#include "fakes/cufile/support.h"

namespace penstock::cufile {
namespace {

using namespace std::chrono_literals;

class CuFileStreams : public WithFakes {
 protected:
  static constexpr std::size_t size = 64 << 10;

  void SetUp() override {
    WithFakes::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    cufile_.set_mode(fake_cufile_gds);
    machine_.with_nvidia_fs();
    engine_ = make_engine({machine_.root()});
    store_ = engine_->open(folder_.write_pattern("a", size), {.access = Access::write}).value();
    library_ = Library::acquire().value();
    device_ = cuda::Driver::get().value()->device(0).value();
    memory_ = std::make_unique<DeviceMemory>(size);
    const cuda::Current current(*device_);
    ASSERT_EQ(device_->api().stream_create(&stream_, cuda::cu_stream_non_blocking, 0), cuda::cu_success);
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      const cuda::Current current(*device_);
      device_->api().stream_synchronize(stream_);
      device_->api().stream_destroy(stream_);
    }
    store_.reset();
    library_.reset();
    engine_.reset();
    WithFakes::TearDown();
  }

  StreamTransfers::Range range() const {
    return {.handle = static_cast<Store&>(*store_).handle(), .base = memory_->data(), .length = size};
  }
  void wait(const StreamTransfer& transfer) const {
    const TimePoint deadline = Clock::now() + 10s;
    while (!transfer.finished() && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(transfer.finished());
  }

  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::Store> store_;
  std::shared_ptr<Library> library_;
  std::unique_ptr<DeviceMemory> memory_;
  cuda::Device* device_ = nullptr;
  cuda::CuStream stream_ = nullptr;
};

TEST_F(CuFileStreams, read_and_write_in_the_order_of_the_stream) {
  StreamTransfers transfers(*library_, *device_);
  ASSERT_TRUE(transfers.register_stream(stream_).ok());
  cufile_.set_hang(1);
  const auto read = transfers.read(range(), stream_);
  ASSERT_TRUE(read.ok()) << read.error().message;
  StreamTransfers::Range again = range();
  again.file_offset = size;
  const auto written = transfers.write(again, stream_);
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_FALSE(read->finished());
  EXPECT_FALSE(written->finished());
  cufile_.set_hang(0);
  wait(*written);
  EXPECT_TRUE(read->finished());
  EXPECT_EQ(read->bytes().value(), size);
  EXPECT_EQ(written->bytes().value(), size);
  EXPECT_TRUE(files::has_pattern(memory_->content().data(), 0, size));
  const std::string content = folder_.read("a");
  EXPECT_EQ(content.substr(0, size), content.substr(size));
  transfers.deregister_stream(stream_);
}

TEST_F(CuFileStreams, keep_parameters_that_the_caller_has_let_go) {
  StreamTransfers transfers(*library_, *device_);
  cufile_.set_hang(1);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(transfers.read(range(), stream_).ok());
  cufile_.set_hang(0);
  const auto last = transfers.read(range(), stream_);
  ASSERT_TRUE(last.ok());
  wait(*last);
  EXPECT_TRUE(files::has_pattern(memory_->content().data(), 0, size));
}

TEST_F(CuFileStreams, tell_what_went_wrong_on_the_stream) {
  StreamTransfers transfers(*library_, *device_);
  cufile_.fail("stream", 1, 5044, 0);
  const auto read = transfers.read(range(), stream_);
  ASSERT_TRUE(read.ok());
  wait(*read);
  EXPECT_EQ(read->bytes().error().system_error, 5044);
  cufile_.fail("cuFileReadAsync", 1, 5038, 0);
  EXPECT_EQ(transfers.read(range(), stream_).error().code, Code::unsupported);
}

}  // namespace
}  // namespace penstock::cufile
