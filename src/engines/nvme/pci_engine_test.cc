#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "engines/nvme/engine.h"
#include "nvme/ram_backend.h"

namespace penstock::nvme {
namespace {

constexpr std::uint64_t disk_blocks = 1024;  // of 512 bytes

// A controller in software that only so much memory can be mapped for, as where little may be locked.
class Stingy : public SoftController {
 public:
  Stingy(std::unique_ptr<BlockBackend> backend, const SoftShape& shape, const SoftFaults& faults,
         std::size_t limit_bytes, std::function<void()> on_close)
      : SoftController(std::move(backend), shape, faults), left_bytes_(limit_bytes), on_close_(std::move(on_close)) {}
  ~Stingy() override { on_close_(); }
  Result<std::uint64_t> map(std::byte* data, std::size_t size_bytes) override {
    if (size_bytes > left_bytes_) return Error{Code::out_of_memory, ENOMEM, "too much to lock", "ulimit -l"};
    left_bytes_ -= size_bytes;
    return SoftController::map(data, size_bytes);
  }

 private:
  std::size_t left_bytes_;
  const std::function<void()> on_close_;
};

// The engine for disks on the bus, with a controller in software at every address.
class PciEngine : public testing::Test {
 protected:
  PciEngine() {
    Settings settings;
    settings.description = {.name = "nvme", .summary = "", .schemes = {"nvme"}};
    settings.probe = [] { return engine::Probe{.available = true}; };
    settings.connect = connect_pci;
    settings.reach = [this](const std::string& controller) -> Result<std::unique_ptr<Transport>> {
      reached_.push_back(controller);
      ++attempts_;
      std::atomic<bool>& driven = driven_[controller == "0000:01:00.0" ? 0 : 1];
      if (busy_ || driven) return Error{Code::in_use, 0, "busy", ""};
      driven = true;
      SoftShape shape;
      shape.name = controller;
      shape.serial = "SERIAL";
      return std::unique_ptr<Transport>(std::make_unique<Stingy>(std::make_unique<RamBackend>(disk_blocks * 512), shape,
                                                                 faults_, lockable_bytes_, [this, &driven] {
                                                                   if (on_close_) on_close_();
                                                                   driven = false;
                                                                 }));
    };
    engine_ = make_engine(std::move(settings));
  }

  Code code_of_opening(const std::string& name, const OpenOptions& options = {}) {
    const auto store = engine_->open(name, options);
    return store ? Code::ok : store.error().code;
  }
  // Some blocks.
  engine::Done read(engine::Store& store, std::size_t size = 8192) {
    const auto queue = engine_->make_queue({.depth = 8}).value();
    std::vector<std::byte> memory(size);
    const auto attached = engine_->memory()->attach(Region::host(memory.data(), memory.size())).value();
    const engine::Op op{
        .store = &store, .length = memory.size(), .memory = memory.data(), .attached = attached.get(), .cookie = 7};
    engine::Done done{.code = Code::timed_out};
    EXPECT_EQ(queue->submit({&op, 1}), 1U);
    EXPECT_EQ(queue->poll({&done, 1}, Clock::now() + std::chrono::seconds(20)), 1U);
    EXPECT_EQ(done.cookie, 7U);
    return done;
  }
  static OpenOptions for_writing() {
    return {.access = Access::write, .allow_block_device_write = true, .serial = "SERIAL", .writable_blocks = 8};
  }

  std::vector<std::string> reached_;
  std::atomic<int> attempts_{0};               // to reach one
  std::array<std::atomic<bool>, 2> driven_{};  // of the two controllers, each of which can have one driver
  std::function<void()> on_close_;
  bool busy_ = false;
  std::size_t lockable_bytes_ = SIZE_MAX;
  SoftFaults faults_;
  std::unique_ptr<engine::Engine> engine_;
};

TEST_F(PciEngine, stores_of_one_controller_share_it) {
  auto first = engine_->open("0000:01:00.0/1", {});
  auto second = engine_->open("0000:01:00.0", for_writing());
  auto other = engine_->open("0000:02:00.0", {});
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_EQ(reached_, (std::vector<std::string>{"0000:01:00.0", "0000:02:00.0"}));
  EXPECT_FALSE((*first)->info().writable);
  EXPECT_TRUE((*second)->info().writable);
  EXPECT_EQ((*first)->info().identity, (*second)->info().identity);
  EXPECT_NE((*first)->info().identity, (*other)->info().identity);
}

TEST_F(PciEngine, opens_a_controller_again_once_the_last_store_has_gone) {
  { ASSERT_TRUE(engine_->open("0000:01:00.0", {}).ok()); }
  ASSERT_TRUE(engine_->open("0000:01:00.0", {}).ok());
  EXPECT_EQ(reached_.size(), 2U);
  busy_ = true;
  EXPECT_EQ(code_of_opening("0000:01:00.0"), Code::in_use);
}

TEST_F(PciEngine, waits_for_one_that_another_thread_is_closing) {
  std::promise<void> closing;
  // Whoever did not wait for it would come meanwhile.
  bool begun = false;
  on_close_ = [&] {
    if (std::exchange(begun, true)) return;
    closing.set_value();
    for (int i = 0; i < 50 && attempts_ < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  Code code = Code::ok;
  std::thread another([&] {
    closing.get_future().wait();
    code = code_of_opening("0000:01:00.0");
  });
  { ASSERT_TRUE(engine_->open("0000:01:00.0", {}).ok()); }
  another.join();
  EXPECT_EQ(code, Code::ok) << "the controller had two drivers";
  EXPECT_EQ(attempts_, 2);
}

TEST_F(PciEngine, does_not_share_a_controller_that_was_given_up) {
  faults_ = {.seed = 1, .vanish_after = 1};
  {
    const auto first = engine_->open("0000:01:00.0", {});
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(read(**first).code, Code::ok);
    EXPECT_NE(read(**first).code, Code::ok);
    EXPECT_EQ(code_of_opening("0000:01:00.0"), Code::io_error);
  }
  faults_ = {};
  EXPECT_EQ(code_of_opening("0000:01:00.0"), Code::ok) << "a new one is there by now";
}

TEST_F(PciEngine, is_its_parents_in_the_child_of_a_fork) {
  auto store = engine_->open("0000:01:00.0", for_writing()).value();
  std::vector<std::byte> memory(4096);
  auto attached = engine_->memory()->attach(Region::host(memory.data(), memory.size())).value();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const Status flushed = store->writer()->commit(true);
    attached.reset();
    store.reset();
    ::_exit(!flushed && flushed.error().code == Code::closed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(read(*store).code, Code::ok);
  EXPECT_TRUE(store->writer()->commit(true).ok());
}

TEST_F(PciEngine, writes_only_to_the_disk_that_is_meant) {
  EXPECT_EQ(code_of_opening("0000:01:00.0", for_writing()), Code::ok);
  OpenOptions options = for_writing();
  options.allow_block_device_write = false;
  EXPECT_EQ(code_of_opening("0000:01:00.0", options), Code::read_only);
  options = for_writing();
  options.serial = "";
  EXPECT_EQ(code_of_opening("0000:01:00.0", options), Code::read_only);
  options = for_writing();
  options.serial = "SERIAL2";
  EXPECT_EQ(code_of_opening("0000:01:00.0", options), Code::invalid_argument);
  options = for_writing();
  options.access = Access::replace;
  EXPECT_EQ(code_of_opening("0000:01:00.0", options), Code::unsupported);
}

TEST_F(PciEngine, wants_a_window_that_lies_on_the_disk) {
  struct Window {
    std::uint64_t first, count;
    Code code;
  };
  for (const Window& window :
       {Window{0, 0, Code::read_only}, Window{0, disk_blocks, Code::ok}, Window{disk_blocks - 1, 1, Code::ok},
        Window{disk_blocks, 1, Code::out_of_range}, Window{1, disk_blocks, Code::out_of_range},
        Window{8, UINT64_MAX, Code::out_of_range}, Window{UINT64_MAX, 2, Code::out_of_range}}) {
    OpenOptions options = for_writing();
    options.first_writable_block = window.first;
    options.writable_blocks = window.count;
    EXPECT_EQ(code_of_opening("0000:01:00.0", options), window.code) << window.first << " " << window.count;
  }
}

TEST_F(PciEngine, lets_no_two_stores_write_one_block) {
  OpenOptions options = for_writing();
  {
    const auto first = engine_->open("0000:01:00.0", options);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(code_of_opening("0000:01:00.0", options), Code::in_use);
    options.first_writable_block = 7;
    EXPECT_EQ(code_of_opening("0000:01:00.0", options), Code::in_use);
    options.first_writable_block = 8;
    EXPECT_EQ(code_of_opening("0000:01:00.0", options), Code::ok);
    EXPECT_EQ(code_of_opening("0000:02:00.0", for_writing()), Code::ok);
  }
  EXPECT_EQ(code_of_opening("0000:01:00.0", for_writing()), Code::ok);
}

TEST_F(PciEngine, says_so_at_once_where_too_little_memory_may_be_locked) {
  struct Case {
    std::size_t lockable_bytes;
    Code code;
  };
  for (const Case& one : {Case{240 << 10, Code::out_of_memory}, Case{4 << 20, Code::ok}}) {
    lockable_bytes_ = one.lockable_bytes;
    const auto store = engine_->open("0000:01:00.0", {});
    ASSERT_TRUE(store.ok()) << store.error().message;
    EXPECT_EQ(read(**store, 256 << 10).code, one.code) << one.lockable_bytes;
  }
}

TEST_F(PciEngine, tells_names_apart_that_mean_nothing) {
  EXPECT_EQ(code_of_opening("0000:01:00.0/x"), Code::invalid_argument);
  EXPECT_EQ(code_of_opening("0000:01:00.0/7"), Code::not_found);
}

TEST(PciEngineHere, refuses_an_address_without_a_device) {
  const auto store = make_pci_engine()->open("ffff:ff:1f.7", {});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().code, Code::not_found);
  EXPECT_EQ(make_pci_engine()->open("disk", {}).error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace penstock::nvme
