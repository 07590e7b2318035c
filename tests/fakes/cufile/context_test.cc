// A Context over the fakes of CUDA and cuFile: which bytes go straight between the file and the GPU, and which don't.
#include "api/context_builder.h"
#include "cuda/quiet.h"
#include "engines/cufile/errors.h"
#include "engines/cufile/library.h"
#include "fakes/cufile/support.h"
#include "files/file_store.h"
#include "files/test_machine.h"
#include "penstock/kinds.h"
#include "support/cache_limit.h"
#include "support/graph_capture.h"
#include "support/over_posix.h"
#include "support/support.h"

namespace penstock::cufile {
namespace {

constexpr std::uint64_t mib = 1 << 20;

std::uint64_t bytes_by(const Report& report, Route route) {
  return report.routes[static_cast<std::size_t>(route)];
}

class StraightToTheGpu : public WithFakes {
 protected:
  void SetUp() override {
    WithFakes::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    FakeCuda::loaded()->clear_injections();
    name_ = folder_.path("weights");
    test::write_file(name_, test::content(1, 0, 9 * mib + 100));
    test::evict(name_);
    cufile_.set_mode(fake_cufile_gds);
    machine_.with_nvidia_fs();
  }

  Context make_context() { return make_context(machine_); }
  Context make_context(const MachineTree& machine) {
    engine::Table table;
    table.push_back(posix::make_engine());
    table.push_back(make_engine({machine.root()}));
    return ContextBuilder::build(std::move(table), options_).value();
  }
  static std::vector<std::byte> bytes_of(Region memory) {
    std::vector<std::byte> bytes(memory.size_bytes);
    EXPECT_TRUE(copy(Region::host(bytes.data(), bytes.size()), memory).ok());
    return bytes;
  }

  // What takes another way than straight goes past the page cache, whatever would fit there.
  const test::CacheLimit limit_{1};
  Options options_{.lanes = 2, .deadlines = test::patient};
  std::string name_;
};

TEST_F(StraightToTheGpu, goes_what_is_aligned_and_the_rest_is_staged) {
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 9 * mib + 100).value();
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(test::holds_content(bytes_of(memory.region()), 1, 0));
  EXPECT_EQ(bytes_by(report, Route::gds), 9 * mib) << report.reason;
  EXPECT_EQ(bytes_by(report, Route::direct_staged), 100U) << report.reason;
  EXPECT_EQ(cufile_.counters().interior_pointers, 0U) << "memory is named by its registration";
  EXPECT_NE(report.reason.find("cufile"), std::string::npos);
  EXPECT_EQ(report.engine, "posix,cufile");
}

TEST_F(StraightToTheGpu, goes_nothing_that_is_in_memory_already) {
  test::warm(name_);
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 9 * mib).value();
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(test::holds_content(bytes_of(memory.region()), 1, 0));
  EXPECT_EQ(bytes_by(report, Route::cached_staged), 9 * mib) << report.reason;
}

TEST_F(StraightToTheGpu, goes_nothing_whose_places_do_not_line_up) {
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const Report report = context.read(store, 4096, memory.region().part(512, 3 * mib));
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(test::holds_content(bytes_of(memory.region().part(512, 3 * mib)), 1, 4096));
  EXPECT_EQ(bytes_by(report, Route::direct_staged), 3 * mib) << report.reason;
}

constexpr std::size_t stride_bytes = 256 << 10;
constexpr std::size_t head_bytes = 64 << 10;

// Of each stride its head counts as cached, and a page more.
class HalfCachedStore : public files::FileStore {
 public:
  using FileStore::FileStore;
  std::optional<std::uint64_t> resident_bytes(std::uint64_t offset, std::uint64_t length) const override {
    constexpr std::uint64_t cached_bytes = head_bytes + 4096;
    const std::uint64_t in_stride = offset % stride_bytes;
    return in_stride < cached_bytes ? std::min(length, cached_bytes - in_stride) : 0;
  }
};

class HalfCachedEngine : public test::OverPosix {
 public:
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    auto file = files::open_file(name, options);
    if (!file) return std::move(file).error();
    return std::unique_ptr<engine::Store>(std::make_unique<HalfCachedStore>(std::move(*file)));
  }
};

// Ranges that begin within a block: staging memory has room for the heads of half of them.
TEST_F(StraightToTheGpu, goes_what_comes_after_heads_that_had_to_wait_for_staging_memory) {
  constexpr std::size_t count = 32;
  options_.lanes = 1;
  options_.storage_chunk_bytes = head_bytes;
  options_.staging_slot_bytes = mib;
  options_.staging_slots_per_lane = 1;
  options_.pinned_budget_bytes = 8 * mib;
  engine::Table table;
  table.push_back(std::make_unique<HalfCachedEngine>());
  table.push_back(make_engine({machine_.root()}));
  Context context = ContextBuilder::build(std::move(table), options_).value();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), count * stride_bytes).value();
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = i * stride_bytes + 100;
    ranges.push_back({&store, begin, memory.region().part(begin, stride_bytes - 100)});
  }
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(test::holds_content(bytes_of(memory.region().part(100, stride_bytes - 100)), 1, 100));
  EXPECT_EQ(bytes_by(report, Route::cached_staged), count * head_bytes) << "a chunk from where the range begins";
  EXPECT_EQ(bytes_by(report, Route::direct_staged), count * (head_bytes - 100)) << "from there to where a chunk begins";
  EXPECT_EQ(bytes_by(report, Route::gds), count * (stride_bytes - 2 * head_bytes)) << "and no more";
}

TEST_F(StraightToTheGpu, goes_what_is_aligned_without_staging_memory) {
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 9 * mib).value();
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_EQ(bytes_by(report, Route::gds), 9 * mib) << report.reason;
  EXPECT_EQ(context.statistics().pinned_bytes, 0U);
}

TEST_F(StraightToTheGpu, goes_everything_where_there_is_no_staging_memory) {
  options_.staging_slot_bytes = mib;
  options_.staging_slots_per_lane = 2;
  options_.pinned_budget_bytes = 8 * mib;
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 9 * mib + 100).value();
  const auto pinned = context.allocate(Domain::pinned(), 8 * mib);
  if (!pinned) GTEST_SKIP() << pinned.error().message;
  test::warm(name_, 3 * mib);
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(test::holds_content(bytes_of(memory.region()), 1, 0));
  EXPECT_EQ(bytes_by(report, Route::gds), 9 * mib + 100) << report.reason;
}

TEST_F(StraightToTheGpu, come_writes_too) {
  Context context = make_context();
  const Store store = context.open(name_, {.access = Access::write}).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  auto bytes = test::content(2, 0, 4 * mib);
  ASSERT_TRUE(copy(memory.region(), Region::host(bytes.data(), bytes.size())).ok());
  const Report report = context.write(store, mib, memory.region().part(0, 3 * mib + 7), {.durable = true});
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_EQ(bytes_by(report, Route::gds), 3 * mib) << report.reason;
  EXPECT_TRUE(test::holds_content(test::read_file(name_, 0, mib), 1, 0));
  EXPECT_TRUE(test::holds_content(test::read_file(name_, mib, 3 * mib + 7), 2, 0));
  EXPECT_TRUE(test::holds_content(test::read_file(name_, 4 * mib + 7, 5 * mib), 1, 4 * mib + 7));
}

TEST_F(StraightToTheGpu, short_transfers_are_continued) {
  cufile_.set_part(64 << 10);
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(test::holds_content(bytes_of(memory.region()), 1, 0));
}

TEST_F(StraightToTheGpu, failures_carry_cufiles_number_and_name_and_what_to_do) {
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  for (const int number : {5030, 5012, 5044}) {
    cufile_.fail("cuFileRead", 1, number, 1);
    const Report report = context.read(store, 0, memory.region());
    ASSERT_EQ(report.outcome, Outcome::failed);
    EXPECT_EQ(report.failures.front().system_error, number);
    EXPECT_EQ(report.error->system_error, number);
    EXPECT_NE(report.error->message.find(describe(number)), std::string::npos) << report.error->message;
    EXPECT_EQ(report.error->hint, error_hint(number));
  }
  cufile_.fail("cuFileRead", 1, EBADMSG, 1);
  const Report report = context.read(store, 0, memory.region());
  EXPECT_NE(report.error->message.find(std::strerror(EBADMSG)), std::string::npos) << report.error->message;
  cufile_.fail("cuFileRead", 1, 0, 0);
}

TEST_F(StraightToTheGpu, goes_nothing_for_a_geforce_beside_others) {
  machine_.folder().write("proc/driver/nvidia/gpus/0000:02:00.0/information",
                          "Model: \t\t NVIDIA GeForce RTX 4090\nBus Location: \t 0000:02:00.0\n");
  Context context = make_context();
  const Store store = context.open(name_).value();
  const auto engine = make_engine({machine_.root()});
  const auto straight = engine->open(name_, {}).value();
  EXPECT_EQ(straight->device_route_to({.name = "NVIDIA H200"}), Route::gds);
  EXPECT_EQ(straight->device_route_to({.name = "NVIDIA GeForce RTX 4090"}), std::nullopt);
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  const Report report = context.read(store, 0, memory.region());
  EXPECT_EQ(bytes_by(report, Route::gds), mib) << report.reason;
}

TEST_F(StraightToTheGpu, a_call_that_hangs_is_abandoned_in_time) {
  options_.deadlines.cancel_grace_seconds = 0.05;
  options_.deadlines.close_seconds = 2;
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  cufile_.set_hang(1);
  const Range range{&store, 0, memory.region()};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  ASSERT_TRUE(test::eventually([&] { return cufile_.counters().in_transfers == 1; }));
  EXPECT_EQ(ticket.cancel(), Outcome::abandoned);
  EXPECT_EQ(context.statistics().quarantined_bytes, mib);
  std::vector<std::byte> host(mib);
  EXPECT_TRUE(context.read(store, 0, Region::host(host.data(), host.size())).ok()) << "the Context goes on";
  cufile_.set_hang(0);
}

TEST_F(StraightToTheGpu, goes_nothing_of_a_file_that_is_first_read_while_a_stream_waits) {
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  ASSERT_TRUE(cuda::Quiet::of_process().begin_wait());
  const Report staged = context.read(context.open(name_).value(), 0, memory.region());
  cuda::Quiet::of_process().end_wait();
  ASSERT_TRUE(staged.ok()) << staged.error->message;
  EXPECT_EQ(bytes_by(staged, Route::direct_staged), mib) << staged.reason;
  EXPECT_NE(staged.reason.find("cufile not used: open cuFile's driver: streams wait"), std::string::npos)
      << staged.reason;
  const Report straight = context.read(context.open(name_).value(), 0, memory.region());
  EXPECT_EQ(bytes_by(straight, Route::gds), mib) << straight.reason;
  EXPECT_EQ(cufile_.counters().buffers, 1U);
}

// What comes before transfers, and hangs.
class Hanging : public StraightToTheGpu {
 protected:
  // Sets the time that a hanging call gets: short for the one that is to hang, and so long for all others that waiting
  // for it would not end.
  static constexpr double moment = 0.25;
  static constexpr double ages = 1e6;

  Report read_all(const Context& context) {
    const Store store = context.open(name_).value();
    const Buffer memory = context.allocate(Domain::cuda(0), 9 * mib).value();
    const Report report = context.read(store, 0, memory.region());
    EXPECT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(test::holds_content(bytes_of(memory.region()), 1, 0));
    return report;
  }
};

class HangingSetUp : public Hanging, public testing::WithParamInterface<const char*> {};

TEST_P(HangingSetUp, leaves_staging_and_is_not_waited_for_again) {
  options_.cache = Cache::bypass;  // whatever the page cache holds
  const std::string function = GetParam();
  const auto library = Library::acquire().value();
  library->set_patience(ages);
  ASSERT_TRUE(function == "cuFileDriverOpen" || library->open({}).ok());
  cufile_.hang(function.c_str(), 1);
  library->set_patience(moment);
  {
    Context context = make_context();
    const Report report = read_all(context);
    EXPECT_EQ(bytes_by(report, Route::direct_staged), 9 * mib) << report.reason;
    EXPECT_NE(report.reason.find(function + " did not come back within"), std::string::npos) << report.reason;
    EXPECT_TRUE(library->is_stuck());
    library->set_patience(ages);
    Context another = make_context();
    for (Context* one : {&context, &another}) {
      EXPECT_EQ(bytes_by(read_all(*one), Route::gds), 0U);
    }
  }
  EXPECT_EQ(cufile_.counters().hanging, 1U) << "every Context has closed, and it still hangs";

  cufile_.hang(function.c_str(), 0);
  while (library->is_stuck()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(cufile_.counters().handles + cufile_.counters().buffers, 0U) << "what came too late is taken back";
  Context context = make_context();
  const Report report = read_all(context);
  EXPECT_EQ(bytes_by(report, Route::gds), 9 * mib) << report.reason;
}

INSTANTIATE_TEST_SUITE_P(CuFile, HangingSetUp,
                         testing::Values("cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister"),
                         [](const auto& test) { return std::string(test.param); });

class HangingTakeDown : public HangingSetUp {};

TEST_F(Hanging, makes_stores_that_went_straight_stage_meanwhile) {
  const auto library = Library::acquire().value();
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  EXPECT_EQ(bytes_by(context.read(store, 0, memory.region()), Route::gds), mib);
  cufile_.hang("cuFileBufRegister", 1);
  library->set_patience(moment);
  {
    const DeviceMemory another(mib);
    ASSERT_TRUE(context.attach(another.region()).ok()) << "it works without being registered";
    const Report report = context.read(store, 4 * mib, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_EQ(bytes_by(report, Route::gds), 0U);
    EXPECT_NE(report.reason.find("cufile not used: it does not reach"), std::string::npos) << report.reason;
    ASSERT_TRUE(context.detach(another.region()).ok());
    cufile_.hang("cuFileBufRegister", 0);
    while (library->is_stuck()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  test::evict(name_);
  EXPECT_EQ(bytes_by(context.read(store, 0, memory.region()), Route::gds), mib);
}

TEST_F(Hanging, keeps_streams_from_waiting_only_as_long_as_it_is_waited_for) {
  const auto library = Library::acquire().value();
  Context context = make_context();
  ASSERT_TRUE(library->open({}).ok());
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  EXPECT_EQ(bytes_by(context.read(store, 0, memory.region()), Route::gds), mib);
  cufile_.hang("cuFileBufRegister", 1);
  library->set_patience(moment);
  const DeviceMemory another(mib);
  ASSERT_TRUE(context.attach(another.region()).ok());
  EXPECT_TRUE(library->is_stuck());
  ASSERT_TRUE(cuda::Quiet::of_process().begin_wait());
  cuda::Quiet::of_process().end_wait();
  ASSERT_TRUE(context.detach(another.region()).ok());
  cufile_.hang("cuFileBufRegister", 0);
  while (library->is_stuck()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_P(HangingTakeDown, keeps_no_context_from_closing) {
  const auto library = Library::acquire().value();
  library->set_patience(ages);
  {
    Context context = make_context();
    const Store store = context.open(name_).value();
    const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
    EXPECT_EQ(bytes_by(context.read(store, 0, memory.region()), Route::gds), mib);
    cufile_.hang(GetParam(), 1);
    library->set_patience(moment);
  }
  EXPECT_TRUE(library->is_stuck());
  library->set_patience(ages);
  {
    Context context = make_context();
    EXPECT_EQ(bytes_by(read_all(context), Route::gds), 0U);
  }
  cufile_.hang(GetParam(), 0);
  while (library->is_stuck()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(cufile_.counters().handles + cufile_.counters().buffers, 0U);
}

INSTANTIATE_TEST_SUITE_P(CuFile, HangingTakeDown, testing::Values("cuFileHandleDeregister", "cuFileBufDeregister"),
                         [](const auto& test) { return std::string(test.param); });

TEST_F(StraightToTheGpu, compat_mode_is_taken_only_if_it_is_named) {
  cufile_.set_mode(fake_cufile_compat);
  const MachineTree without;
  for (const bool named : {false, true}) {
    if (named) options_.allowed_routes = {Route::cufile_compat, Route::direct_staged, Route::buffered_staged};
    Context context = make_context(without);
    const Store store = context.open(name_).value();
    const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
    const Report report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_EQ(bytes_by(report, Route::cufile_compat), named ? 4 * mib : 0U) << report.reason;
    EXPECT_EQ(bytes_by(report, Route::direct_staged), named ? 0U : 4 * mib) << report.reason;
    const bool says_so = report.reason.find("compatibility mode: not direct") != std::string::npos;
    EXPECT_EQ(says_so, named) << report.reason;
    EXPECT_EQ(report.reason.find("straight between"), std::string::npos) << report.reason;
  }
}

// In processes of their own, which can't use cuFile any more.
class Refused : public StraightToTheGpu {
 protected:
  Refused() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Reads by two Contexts and by two stores each; how often standard error has the text. -1 if not all was staged.
  int times_told(const std::string& text, const MachineTree& machine) {
    testing::internal::CaptureStderr();
    bool all_staged = true;
    for (int i = 0; i < 2; ++i) {
      options_.cache = Cache::bypass;
      Context context = make_context(machine);
      for (int j = 0; j < 2; ++j) {
        const Store store = context.open(name_).value();
        const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
        const Report report = context.read(store, 0, memory.region());
        all_staged = all_staged && report.ok() && bytes_by(report, Route::direct_staged) == 4 * mib &&
                     report.reason.find("cufile not used: ") != std::string::npos &&
                     test::holds_content(bytes_of(memory.region()), 1, 0);
      }
    }
    const std::string log = testing::internal::GetCapturedStderr();
    int times = 0;
    for (auto at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++times;
    if (log.find('\n') + 1 != log.size()) times += 10;  // more than one line
    return all_staged ? times : -1;
  }
};

TEST_F(Refused, a_driver_that_does_not_open_is_told_once_and_staging_takes_over) {
  cufile_.fail("cuFileDriverOpen", 1, 5004, 0);
  EXPECT_EXIT(::_exit(times_told("warning: GPUDirect Storage is not used, bytes for GPUs are staged through host "
                                 "memory: open cuFile's driver: CU_FILE_",
                                 machine_)),
              testing::ExitedWithCode(1), "");
}

TEST_F(Refused, files_that_can_not_be_registered_are_told_once_and_staged) {
  cufile_.fail("cuFileHandleRegister", 1, cf_handle_not_registered, 1);
  EXPECT_EXIT(::_exit(times_told("warning: GPUDirect Storage is not used, bytes for GPUs are staged through host "
                                 "memory: register " +
                                     name_.substr(0, 1),
                                 machine_)),
              testing::ExitedWithCode(1), "");
}

TEST_F(Refused, a_machine_without_gpudirect_storage_is_told_of_to_who_asks_for_it) {
  const MachineTree without;
  const std::string text =
      "info: there is no GPUDirect Storage, bytes for GPUs are staged through host memory: cuFile "
      "would take bytes through host memory: nvidia-fs is not loaded";
  for (const int times : {0, 1}) {
    const auto run = [&] {
      ::setenv("PENSTOCK_LOG", times == 0 ? "warning" : "info", 1);
      ::_exit(times_told(text, without));
    };
    EXPECT_EXIT(run(), testing::ExitedWithCode(times), "");
  }
}

TEST_F(StraightToTheGpu, is_available_where_the_machine_can_and_what_is_aligned_can_go) {
  const MachineTree without;
  EXPECT_FALSE(is_gpu_direct_available(make_context(without).engines()));
  Context context = make_context();
  const auto engines = context.engines();
  EXPECT_TRUE(is_gpu_direct_available(engines));
  EXPECT_TRUE(is_available(engines, "posix") && is_available(engines, "cufile"));
  EXPECT_FALSE(is_available(engines, "no such engine"));

  const Alignments alignments = context.open(name_).value().info().alignments;
  ASSERT_GE(alignments.offset, 512U);
  const Buffer memory = context.allocate(Domain::host(), mib).value();
  EXPECT_TRUE(is_aligned(alignments, alignments.offset, memory.region()));
  EXPECT_FALSE(is_aligned(alignments, alignments.offset / 2, memory.region()));
  EXPECT_FALSE(is_aligned(alignments, 0, memory.region().part(0, alignments.offset / 2)));
  EXPECT_FALSE(is_aligned(alignments, 0, memory.region().part(1, alignments.offset)));
}

TEST_F(StraightToTheGpu, goes_a_kind_of_records) {
  constexpr std::uint64_t record_bytes = 4096;
  Context context = make_context();
  const Kinds kinds = Kinds::create(context, folder_.path("records")).value();
  const Kind other = kinds.add({.name = "other", .capacity = 3, .record_bytes = record_bytes}).value();
  const Kind kind = kinds.add({.name = "one", .capacity = 64, .record_bytes = record_bytes}).value();
  auto records = test::content(3, 0, 64 * record_bytes);
  ASSERT_TRUE(kinds.append(kind.id, Region::host(records.data(), records.size())).ok());
  ASSERT_TRUE(kinds.append(other.id, Region::host(records.data(), record_bytes)).ok());
  test::evict(folder_.path("records"));
  const auto loaded = kinds.read({.kind = kind.id, .index = 5, .count = 32}, Domain::cuda(0));
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_TRUE(test::holds_content(bytes_of(loaded->buffer.region()), 3, 5 * record_bytes));
  EXPECT_EQ(bytes_by(loaded->report, Route::gds), 32 * record_bytes) << loaded->report.reason;

  options_.allowed_routes = {Route::cached, Route::direct, Route::direct_staged, Route::cached_staged};
  Context plain = make_context();
  const auto staged =
      Kinds::open(plain, folder_.path("records")).value().read({.kind = kind.id, .count = 64}, Domain::cuda(0));
  ASSERT_TRUE(staged.ok()) << staged.error().message;
  EXPECT_TRUE(test::holds_content(bytes_of(staged->buffer.region()), 3, 0));
  EXPECT_EQ(bytes_by(staged->report, Route::gds), 0U);
  EXPECT_EQ(kinds.read({.kind = other.id, .index = 1}, Domain::cuda(0)).error().code, Code::out_of_range);
}

TEST_F(StraightToTheGpu, goes_a_block_device) {
  const files::AttachedLoop device(name_);
  if (!device.refusal().empty()) GTEST_SKIP() << device.refusal();
  for (const bool straight : {true, false}) {
    options_.cache = Cache::bypass;
    if (!straight) options_.allowed_routes = {Route::direct_staged};
    Context context = make_context();
    const Store store = context.open(device.path()).value();
    ASSERT_EQ(store.info().kind, StoreKind::block_device);
    const Buffer memory = context.allocate(Domain::cuda(0), 8 * mib).value();
    const Report report = context.read(store, mib, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(test::holds_content(bytes_of(memory.region()), 1, mib));
    EXPECT_EQ(bytes_by(report, straight ? Route::gds : Route::direct_staged), 8 * mib) << report.reason;
  }
}

// cuFile calls CUDA: from opening its driver on, whose end is that of the Context here.
TEST_F(StraightToTheGpu, disturbs_no_graph_that_is_being_captured) {
  test::GraphCapture capture;
  std::thread([this] {
    Context context = make_context();
    const Store store = context.open(name_).value();
    const Buffer memory = context.allocate(Domain::cuda(0), 8 * mib).value();
    EXPECT_EQ(bytes_by(context.read(store, 0, memory.region()), Route::gds), 8 * mib);
    test::evict(name_);
    std::vector<Range> ranges;  // short ones, which go in batches
    for (std::size_t i = 0; i < 64; ++i) ranges.push_back({&store, i * 16384, memory.region().part(i * 16384, 8192)});
    EXPECT_EQ(bytes_by(context.transfer(Direction::read, ranges), Route::gds), 64 * 8192U);
    EXPECT_GT(cufile_.counters().batched_transfers, 0U);
    test::evict(name_);
    const DeviceMemory another(mib);
    ASSERT_TRUE(context.attach(another.region()).ok());
    EXPECT_EQ(bytes_by(context.read(store, 0, another.region()), Route::gds), mib);
    ASSERT_TRUE(context.detach(another.region()).ok());
  }).join();
  EXPECT_TRUE(capture.works());
  EXPECT_EQ(cufile_.counters().handles + cufile_.counters().buffers + cufile_.counters().batches, 0U);
  EXPECT_EQ(cufile_.counters().use_count, 0);
}

TEST_F(StraightToTheGpu, the_engine_alone_takes_any_offset_and_no_host_memory) {
  options_.engine = "cufile";
  Context context = make_context();
  const Store store = context.open(name_).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 2 * mib).value();
  const Report report = context.read(store, 100, memory.region().part(7, mib + 3));
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(test::holds_content(bytes_of(memory.region().part(7, mib + 3)), 1, 100));
  std::byte byte{};
  EXPECT_EQ(context.read(store, 0, Region::host(&byte, 1)).error->code, Code::unsupported);
}

}  // namespace
}  // namespace penstock::cufile
