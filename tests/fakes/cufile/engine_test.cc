#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "cuda/quiet.h"
#include "engines/cufile/batch.h"
#include "engines/cufile/errors.h"
#include "engines/cufile/store.h"
#include "fakes/cufile/support.h"

namespace penstock::cufile {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;
using engine::Path;
using namespace std::chrono_literals;

constexpr std::size_t block = 4096;
constexpr std::size_t blocks = 64;
constexpr std::size_t size_bytes = block * blocks;

class CuFileEngine : public WithFakes {
 protected:
  void SetUp() override {
    WithFakes::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    name_ = folder_.write_pattern("a", size_bytes);
    memory_ = std::make_unique<DeviceMemory>(size_bytes);
  }
  void TearDown() override {
    queue_.reset();
    store_.reset();
    engine_.reset();
    WithFakes::TearDown();
  }

  // A machine with nvidia-fs, and the store opened.
  void start_gds(Access access = Access::read) {
    cufile_.set_mode(fake_cufile_gds);
    machine_.with_nvidia_fs();
    start(access);
  }
  void start(Access access = Access::read, unsigned threads = 4) {
    engine_ = make_engine({machine_.root()});
    store_ = engine_->open(name_, {.access = access}).value();
    queue_ = engine_->make_queue({.depth = 64, .threads = threads}).value();
  }

  Op op(OpKind kind, std::size_t index, std::size_t count = 1, const engine::Attached* attached = nullptr) {
    return {.kind = kind,
            .path = Path::device,
            .store = store_.get(),
            .offset = index * block,
            .length = count * block,
            .memory = memory_->data() + index * block,
            .attached = attached,
            .cookie = index};
  }
  std::unique_ptr<engine::Attached> attach() { return engine_->memory()->attach(memory_->region()).value(); }
  Done run(const Op& one) {
    EXPECT_EQ(queue_->submit({&one, 1}), 1U);
    return collect(*queue_, 1)[one.cookie];
  }
  std::map<std::uint64_t, Done> run_all_blocks(OpKind kind) {
    std::vector<Op> ops;
    for (std::size_t i = 0; i < blocks; ++i) ops.push_back(op(kind, i));
    EXPECT_EQ(queue_->submit(ops), ops.size());
    return collect(*queue_, ops.size());
  }
  bool memory_has_pattern() const { return files::has_pattern(memory_->content().data(), 0, size_bytes); }

  std::string name_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::Store> store_;
  std::unique_ptr<engine::Queue> queue_;
};

TEST_F(CuFileEngine, reads_into_gpu_memory) {
  start_gds();
  EXPECT_EQ(store_->device_route(), Route::gds);
  const Done done = run(op(OpKind::read, 0, blocks));
  EXPECT_EQ(done.code, Code::ok);
  EXPECT_EQ(done.bytes, size_bytes);
  EXPECT_EQ(done.route, Route::gds);
  EXPECT_TRUE(memory_has_pattern());
  EXPECT_EQ(cufile_.counters().without_context, 0U);
}

TEST_F(CuFileEngine, writes_from_gpu_memory_and_syncs) {
  start_gds(Access::write);
  memory_->fill(std::vector<std::byte>(size_bytes, std::byte{7}));
  EXPECT_EQ(run(op(OpKind::write, 0, blocks)).bytes, size_bytes);
  EXPECT_EQ(run({.kind = OpKind::flush, .store = store_.get()}).code, Code::ok);
  EXPECT_EQ(folder_.read("a"), std::string(size_bytes, 7));
}

TEST_F(CuFileEngine, names_attached_memory_by_its_base) {
  start_gds();
  auto attached = attach();
  ASSERT_TRUE(attached);
  EXPECT_EQ(cufile_.counters().buffers, 1U);
  for (std::size_t i = 0; i < blocks; i += 8) EXPECT_EQ(run(op(OpKind::read, i, 8, attached.get())).bytes, 8 * block);
  EXPECT_TRUE(memory_has_pattern());
  EXPECT_EQ(cufile_.counters().interior_pointers, 0U);
  attached.reset();
  EXPECT_EQ(cufile_.counters().buffers, 0U);
}

TEST_F(CuFileEngine, registers_memory_that_was_attached_before_the_driver_was_open) {
  cufile_.set_mode(fake_cufile_gds);
  machine_.with_nvidia_fs();
  engine_ = make_engine({machine_.root()});
  auto attached = attach();
  EXPECT_TRUE(engine_->probe().available);
  EXPECT_EQ(cufile_.counters().driver_opens, 0U);
  store_ = engine_->open(name_, {}).value();
  EXPECT_EQ(cufile_.counters().driver_opens, 1U);
  EXPECT_EQ(cufile_.counters().buffers, 1U);
  attached.reset();
  EXPECT_EQ(cufile_.counters().buffers, 0U);
}

TEST_F(CuFileEngine, opens_the_driver_only_when_no_stream_waits) {
  cufile_.set_mode(fake_cufile_gds);
  machine_.with_nvidia_fs();
  engine_ = make_engine({machine_.root()});
  ASSERT_TRUE(cuda::Quiet::of_process().begin_wait());
  const auto refused = engine_->open(name_, {});
  cuda::Quiet::of_process().end_wait();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::would_deadlock);
  EXPECT_EQ(cufile_.counters().driver_opens, 0U);
  EXPECT_TRUE(engine_->open(name_, {}).ok()) << "a refusal is not remembered";
}

TEST_F(CuFileEngine, registers_memory_that_was_attached_while_a_stream_waited_when_none_does) {
  start_gds();
  ASSERT_TRUE(cuda::Quiet::of_process().begin_wait());
  auto attached = attach();
  const auto meanwhile = engine_->open(name_, {});
  EXPECT_EQ(cufile_.counters().buffers, 0U);
  EXPECT_EQ(run(op(OpKind::read, 0, blocks, attached.get())).bytes, size_bytes) << "through cuFile's own buffers";
  cuda::Quiet::of_process().end_wait();
  EXPECT_TRUE(memory_has_pattern());
  const auto after = engine_->open(name_, {});
  EXPECT_EQ(cufile_.counters().buffers, 1U);
  EXPECT_EQ(run(op(OpKind::read, 8, 8, attached.get())).bytes, 8 * block);
  EXPECT_EQ(cufile_.counters().interior_pointers, 0U);
  attached.reset();
  EXPECT_EQ(cufile_.counters().buffers, 0U);
}

TEST_F(CuFileEngine, goes_on_where_memory_can_not_be_registered) {
  start_gds();
  cufile_.fail("cuFileBufRegister", 1, 5036, 0);
  auto attached = attach();
  EXPECT_EQ(run(op(OpKind::read, 0, blocks, attached.get())).bytes, size_bytes);
  EXPECT_TRUE(memory_has_pattern());
  attached.reset();
}

TEST_F(CuFileEngine, leaves_the_registration_of_somebody_else_alone) {
  start_gds();
  auto theirs = attach();
  auto ours = attach();  // 5023 from cuFile
  EXPECT_EQ(run(op(OpKind::read, 8, 8, ours.get())).bytes, 8 * block);
  EXPECT_EQ(cufile_.counters().interior_pointers, 0U);
  ours.reset();
  EXPECT_EQ(cufile_.counters().buffers, 1U);
}

TEST_F(CuFileEngine, attaches_no_host_memory) {
  start_gds();
  std::byte memory{};
  EXPECT_FALSE(engine_->memory()->attach(Region::host(&memory, 1)).value());
}

TEST_F(CuFileEngine, uses_p2pdma_where_its_conditions_are_met) {
  cufile_.set_mode(fake_cufile_p2pdma);
  machine_.with_p2pdma();
  start();
  EXPECT_EQ(engine_->probe().device_route, Route::p2pdma);
  EXPECT_EQ(store_->device_route(), Route::p2pdma);
  EXPECT_EQ(run(op(OpKind::read, 0, blocks)).route, Route::p2pdma);
}

TEST_F(CuFileEngine, allows_compatibility_mode_only_where_there_is_nothing_better) {
  start();
  EXPECT_EQ(engine_->probe().device_route, Route::cufile_compat);
  EXPECT_EQ(store_->device_route(), Route::cufile_compat);
  const Done done = run(op(OpKind::read, 0, blocks));
  EXPECT_EQ(done.route, Route::cufile_compat);
  EXPECT_TRUE(memory_has_pattern());
}

TEST_F(CuFileEngine, refuses_rather_than_falls_back) {
  cufile_.set_mode(fake_cufile_other_files);
  machine_.with_nvidia_fs();
  engine_ = make_engine({machine_.root()});
  const auto store = engine_->open(name_, {});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().code, Code::unsupported);
  EXPECT_EQ(store.error().system_error, 5008);
}

TEST_F(CuFileEngine, does_not_know_the_way_when_somebody_else_allowed_the_fallback) {
  cufile_.set_mode(fake_cufile_gds);
  cufile_.set_version(1300);  // of which no statistics are known
  cufile_.open_by_others(1);
  machine_.with_nvidia_fs();
  start();
  EXPECT_EQ(store_->device_route(), Route::cufile_unknown);
  EXPECT_EQ(run(op(OpKind::read, 0)).route, Route::cufile_unknown);
}

TEST_F(CuFileEngine, lets_the_statistics_prove_the_way) {
  for (const int version : {1150, 1190}) {
    for (const bool secretly : {false, true}) {
      cufile_.reset();
      cufile_.set_mode(fake_cufile_gds);
      cufile_.set_version(version);
      cufile_.set_secretly_posix(secretly ? 1 : 0);
      cufile_.open_by_others(1);
      machine_.with_nvidia_fs();
      start();
      EXPECT_EQ(store_->device_route(), Route::cufile_unknown);
      const Route proven = secretly ? Route::cufile_compat : Route::gds;
      EXPECT_EQ(run(op(OpKind::read, 0)).route, proven) << version;
      EXPECT_EQ(store_->device_route(), proven);
      queue_.reset();
      store_.reset();
      engine_.reset();
    }
  }
}

TEST_F(CuFileEngine, never_calls_it_gds_once_bytes_went_through_host_memory) {
  cufile_.set_mode(fake_cufile_gds);
  cufile_.open_by_others(1);
  machine_.with_nvidia_fs();
  start();
  EXPECT_EQ(run(op(OpKind::read, 0)).route, Route::gds);
  cufile_.set_secretly_posix(1);
  EXPECT_EQ(run(op(OpKind::read, 1)).route, Route::cufile_unknown);
  EXPECT_EQ(store_->device_route(), Route::cufile_unknown);
}

TEST_F(CuFileEngine, returns_short_transfers_as_they_are) {
  start_gds();
  cufile_.set_part(3 * block);
  const Done done = run(op(OpKind::read, 0, blocks));
  EXPECT_EQ(done.code, Code::ok);
  EXPECT_EQ(done.bytes, 3 * block);
}

TEST_F(CuFileEngine, ends_a_read_at_the_end_of_the_file) {
  start_gds();
  Op past = op(OpKind::read, 0);
  past.offset = size_bytes;
  EXPECT_EQ(run(past).bytes, 0U);
}

TEST_F(CuFileEngine, passes_on_every_number_of_cufile) {
  start_gds(Access::write);
  for (int number = 5001; number <= 5060; ++number) {
    for (const auto& [name, kind] : {std::pair("cuFileRead", OpKind::read), {"cuFileWrite", OpKind::write}}) {
      cufile_.fail(name, 1, number, 0);
      const Done done = run(op(kind, 1));
      EXPECT_EQ(done.system_error, number);
      EXPECT_EQ(done.code, code_from_number(number));
      EXPECT_EQ(done.bytes, 0U);
    }
  }
  EXPECT_EQ(run(op(OpKind::read, 0, blocks)).bytes, size_bytes);
}

TEST_F(CuFileEngine, passes_on_error_numbers_of_the_system) {
  start_gds(Access::write);
  cufile_.fail("cuFileWrite", 1, ENOSPC, 0);
  EXPECT_EQ(run(op(OpKind::write, 0)).code, Code::no_space);
  cufile_.fail("cuFileRead", 1, EAGAIN, 0);
  const Done again = run(op(OpKind::read, 0));
  EXPECT_EQ(again.code, Code::io_error);
  EXPECT_EQ(again.system_error, EAGAIN);
}

TEST_F(CuFileEngine, refuses_paths_and_memory_that_are_not_its_own) {
  start_gds();
  for (const Path path : {Path::cached, Path::direct, Path::buffered}) {
    Op other = op(OpKind::read, 0);
    other.path = path;
    EXPECT_EQ(run(other).code, Code::unsupported);
  }
  files::AlignedMemory host(block);
  Op on_host = op(OpKind::read, 0);
  on_host.memory = host.data();
  EXPECT_EQ(run(on_host).code, Code::device_error);
  Op far = op(OpKind::read, 0);
  far.offset = UINT64_MAX - block;
  EXPECT_EQ(run(far).code, Code::invalid_argument);
  EXPECT_EQ(cufile_.counters().transfers, 0U);
}

TEST_F(CuFileEngine, keeps_serving_while_a_call_hangs) {
  start_gds();
  cufile_.set_hang(1);
  const std::array<Op, 3> ops{op(OpKind::read, 0, blocks), op(OpKind::read, 1, blocks - 1), op(OpKind::read, 2)};
  queue_ = engine_->make_queue({.depth = 8, .threads = 2}).value();
  ASSERT_EQ(queue_->submit(ops), 3U);
  while (cufile_.counters().in_transfers < 2) std::this_thread::sleep_for(1ms);
  std::array<Done, 4> done{};
  EXPECT_EQ(queue_->poll(done, Clock::now() + 20ms), 0U);
  queue_->cancel(2);
  EXPECT_EQ(collect(*queue_, 1)[2].code, Code::cancelled);
  queue_->cancel(0);  // is with cuFile, and nobody can recall it
  cufile_.set_hang(0);
  for (const auto& [cookie, one] : collect(*queue_, 2)) EXPECT_GT(one.bytes, 0U);
}

TEST_F(CuFileEngine, reads_bursts_of_small_blocks_in_batches) {
  start_gds();
  for (const auto& [cookie, done] : run_all_blocks(OpKind::read)) {
    EXPECT_EQ(done.bytes, block);
    EXPECT_EQ(done.route, Route::gds);
  }
  EXPECT_TRUE(memory_has_pattern());
  EXPECT_GT(cufile_.counters().batched_transfers, 0U);
  EXPECT_EQ(cufile_.counters().without_context, 0U);
  queue_.reset();
  EXPECT_EQ(cufile_.counters().batches, 0U);
}

TEST_F(CuFileEngine, makes_no_batches_in_compatibility_mode) {
  start();
  run_all_blocks(OpKind::read);
  EXPECT_TRUE(memory_has_pattern());
  EXPECT_EQ(cufile_.counters().batched_transfers, 0U);
}

TEST_F(CuFileEngine, does_one_by_one_what_can_not_be_batched) {
  start_gds();
  for (const char* call : {"cuFileBatchIOSetUp", "cuFileBatchIOSubmit"}) {
    cufile_.fail(call, 1, 5039, 1);
    for (const auto& [cookie, done] : run_all_blocks(OpKind::read)) EXPECT_EQ(done.bytes, block);
    EXPECT_TRUE(memory_has_pattern());
  }
  EXPECT_EQ(cufile_.counters().batched_transfers, 0U);
}

TEST_F(CuFileEngine, tells_which_operation_of_a_batch_failed) {
  start_gds();
  start(Access::read, 1);
  cufile_.fail("entry", 5, 5044, 0);
  std::size_t failed = 0;
  for (const auto& [cookie, done] : run_all_blocks(OpKind::read)) {
    if (done.code == Code::ok) continue;
    ++failed;
    EXPECT_EQ(done.code, Code::io_error);
    EXPECT_EQ(done.system_error, 5044);
  }
  EXPECT_EQ(failed, 1U);
}

TEST_F(CuFileEngine, knows_what_to_do_without_a_udev_database) {
  struct stat status = {};
  ASSERT_EQ(::stat(name_.c_str(), &status), 0);
  machine_.with_nvidia_fs().with_mount(files::device_number(status.st_dev), "ext4");
  if (files::device_number(status.st_dev).major == 0) GTEST_SKIP() << "the scratch folder is on no block device";
  cufile_.set_mode(fake_cufile_gds);
  cufile_.fail("cuFileHandleRegister", 1, 5027, 0);
  engine_ = make_engine({machine_.root()});
  const auto store = engine_->open(name_, {});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().system_error, 5027);
  EXPECT_NE(store.error().hint.find("/run/udev/data/b" + files::device_number(status.st_dev).name()), std::string::npos)
      << store.error().hint;
}

TEST_F(CuFileEngine, passes_on_why_a_file_can_not_be_registered) {
  cufile_.set_mode(fake_cufile_gds);
  machine_.with_nvidia_fs();
  engine_ = make_engine({machine_.root()});
  for (int number = 5001; number <= 5050; ++number) {
    cufile_.fail("cuFileHandleRegister", 1, number, 0);
    const auto store = engine_->open(name_, {});
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.error().system_error, number);
    EXPECT_EQ(store.error().code, code_from_number(number));
    EXPECT_FALSE(store.error().hint.empty());
  }
  EXPECT_EQ(cufile_.counters().handles, 0U);
}

TEST_F(CuFileEngine, gives_everything_back) {
  start_gds();
  EXPECT_EQ(cufile_.counters().handles, 1U);
  queue_.reset();
  store_.reset();
  EXPECT_EQ(cufile_.counters().handles, 0U);
  EXPECT_EQ(cufile_.counters().use_count, 1);
  engine_.reset();
  EXPECT_EQ(cufile_.counters().use_count, 0);
}

TEST_F(CuFileEngine, serves_no_forked_child) {
  start_gds();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = engine_->open(name_, {});
    ::_exit(!store.ok() && store.error().code != Code::internal ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(run(op(OpKind::read, 0)).bytes, block);
}

TEST_F(CuFileEngine, says_in_its_probe_what_is_missing) {
  engine_ = make_engine({machine_.root()});
  const engine::Probe probe = engine_->probe();
  EXPECT_TRUE(probe.available);
  EXPECT_FALSE(probe.reason.empty());
  EXPECT_FALSE(probe.remedy.empty());
  ASSERT_FALSE(probe.conditions.empty());
  EXPECT_EQ(probe.conditions.front().name, "libcufile");
  EXPECT_NE(probe.conditions.front().detail.find("1.15"), std::string::npos);
  EXPECT_TRUE(engine_->description().reaches_device);
  EXPECT_EQ(engine_->make_queue({.depth = 0}).error().code, Code::invalid_argument);
}

// Batches by themselves, so that patience can be short.
class CuFileBatch : public CuFileEngine, private files::Completions {
 protected:
  void SetUp() override {
    CuFileEngine::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    start_gds();
    library_ = Library::acquire().value();
    batches_.patience = 50ms;
    for (std::size_t i = 0; i < 8; ++i) {
      const Op one = op(OpKind::read, i);
      transfers_.push_back({one, static_cast<Store*>(store_.get())->handle(), one.memory, 0, Route::gds});
    }
  }
  bool run_batch(Batch& batch) {
    cuda::Device& device = *cuda::Driver::get().value()->device(0).value();
    const cuda::Current current(device);
    return batch.run(transfers_, *this);
  }
  void complete(const Done& done) override { home_.push_back(done); }

  std::shared_ptr<Library> library_;
  BatchSwitch batches_;
  std::vector<Transfer> transfers_;
  std::vector<Done> home_;
};

TEST_F(CuFileBatch, that_stalls_is_cancelled_and_the_last_one) {
  cufile_.set_stall(fake_cufile_stall_until_cancelled);
  Batch batch(*library_, batches_);
  EXPECT_TRUE(run_batch(batch));
  ASSERT_EQ(home_.size(), transfers_.size());
  for (const Done& done : home_) {
    EXPECT_EQ(done.code, Code::io_error);
    EXPECT_EQ(done.system_error, EAGAIN);
  }
  EXPECT_FALSE(batches_.on);
}

TEST_F(CuFileBatch, that_does_not_even_come_home_cancelled_is_left_behind) {
  cufile_.set_stall(fake_cufile_stall_for_good);
  {
    Batch batch(*library_, batches_);
    EXPECT_TRUE(run_batch(batch));
    EXPECT_TRUE(home_.empty());
    cufile_.set_stall(fake_cufile_no_stall);
    EXPECT_TRUE(run_batch(batch));  // with a handle of its own
    EXPECT_EQ(home_.size(), transfers_.size());
  }
  EXPECT_EQ(cufile_.counters().batches, 1U);
}

TEST_F(CuFileBatch, survives_a_status_that_fails_for_a_while) {
  cufile_.fail("cuFileBatchIOGetStatus", 1, 5041, 0);
  Batch batch(*library_, batches_);
  EXPECT_TRUE(run_batch(batch));
  EXPECT_EQ(home_.size(), transfers_.size());
}

}  // namespace
}  // namespace penstock::cufile
