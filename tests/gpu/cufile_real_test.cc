// The real libcufile on a real GPU. On machines without GPUDirect Storage it runs in compatibility mode: enough to show
// that our declarations, our calls and our threads are right, and that nothing is called GDS which is not.
#include "engines/cufile/batch.h"
#include "engines/cufile/diagnosis.h"
#include "engines/cufile/engine.h"
#include "engines/cufile/store.h"
#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;
using namespace std::chrono_literals;

constexpr std::size_t block = 64 << 10;
constexpr std::size_t blocks = 64;
constexpr std::size_t size_bytes = block * blocks;

class RealCuFile : public GpuTest, protected files::Completions {
 protected:
  // Whatever is skipped later: the log says which library was there.
  static void SetUpTestSuite() {
    if (FakeCuda::loaded()) return;
    const auto library = cufile::Library::acquire();
    if (!library) return;
    const int version = (*library)->version();
    std::cout << "libcufile " << version / 1000 << '.' << version % 1000 / 10 << '.' << version % 10 << " at "
              << (*library)->path() << '\n';
  }
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (fake_) GTEST_SKIP() << "this GPU is a fake: libcufile has nothing to talk to";
    auto library = cufile::Library::acquire();
    if (!library) GTEST_SKIP() << library.error().message;
    library_ = *library;
    engine_ = cufile::make_engine();
    path_ = folder_.path("file");
    write_file(path_, content(1, 0, size_bytes));
    open();
  }
  void TearDown() override {
    queue_.reset();
    store_.reset();
    if (memory_ != 0) {
      const cuda::Current current(gpu());
      driver_->api().memory_free(memory_);
    }
  }

  // Skips where cuFile refuses the file for a reason that the diagnosis knows; anything else is a failure.
  void open() {
    auto store = engine_->open(path_, {.access = Access::write});
    if (!store && store.error().system_error == cufile::cf_handle_not_registered) {
      EXPECT_NE(store.error().hint.find("/run/udev/data"), std::string::npos) << store.error().message;
      GTEST_SKIP() << "as the diagnosis predicted: " << store.error().message << "; " << store.error().hint;
    }
    if (!store && store.error().code == Code::unsupported) GTEST_SKIP() << store.error().message;
    ASSERT_TRUE(store.ok()) << store.error().message << "; " << store.error().hint;
    store_ = std::move(*store);
    queue_ = engine_->make_queue({.depth = 64, .threads = 8}).value();
    const cuda::Current current(gpu());
    ASSERT_EQ(driver_->api().memory_allocate(&memory_, size_bytes), cuda::cu_success);
    region_ = {reinterpret_cast<std::byte*>(memory_), size_bytes, Domain::cuda(0)};
  }

  std::vector<Op> ops(OpKind kind, const engine::Attached* attached) const {
    std::vector<Op> all;
    for (std::size_t i = 0; i < blocks; ++i) {
      all.push_back({.kind = kind,
                     .path = engine::Path::device,
                     .store = store_.get(),
                     .offset = i * block,
                     .length = block,
                     .memory = region_.data + i * block,
                     .attached = attached,
                     .cookie = i});
    }
    return all;
  }
  void run(OpKind kind, const engine::Attached* attached = nullptr) {
    ASSERT_EQ(queue_->submit(ops(kind, attached)), blocks);
    std::array<Done, 16> done{};
    std::size_t home = 0;
    const TimePoint deadline = Clock::now() + 30s;
    while (home < blocks && Clock::now() < deadline) {
      const std::size_t got = queue_->poll(done, deadline);
      for (const Done& one : std::span(done).first(got)) {
        EXPECT_EQ(one.code, Code::ok) << one.system_error;
        EXPECT_EQ(one.bytes, block);
        EXPECT_EQ(one.route, store_->device_route());
      }
      home += got;
    }
    ASSERT_EQ(home, blocks);
  }
  void complete(const Done& done) override { home_.push_back(done); }

  std::shared_ptr<cufile::Library> library_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::Store> store_;
  std::unique_ptr<engine::Queue> queue_;
  std::string path_;
  cuda::CuDevicePtr memory_ = 0;
  Region region_;
  std::vector<Done> home_;
};

TEST_F(RealCuFile, tells_its_version_and_its_properties) {
  EXPECT_GE(library_->version(), 1000);
  const auto& state = library_->state();
  const auto& module = state.properties.kernel_module;
  EXPECT_GT(state.properties.max_batch_size, 0U);
  std::cout << "nvidia-fs " << module.major << "." << module.minor << ", status 0x" << std::hex << module.status_flags
            << ", control 0x" << module.control_flags << ", features 0x" << state.properties.feature_flags << std::dec
            << ", compatibility mode " << (state.compat_allowed ? "allowed" : "forbidden") << ", statistics "
            << (library_->counts() ? "counted" : "not counted") << '\n';
}

TEST_F(RealCuFile, is_called_gds_only_where_the_machine_can_do_it) {
  const auto diagnosis = cufile::diagnose(cufile::gather_facts("/"));
  if (diagnosis.route == Route::cufile_compat) {
    EXPECT_EQ(store_->device_route(), Route::cufile_compat) << diagnosis.reason;
  }
  EXPECT_EQ(engine_->probe().device_route, diagnosis.route);
}

TEST_F(RealCuFile, reads_and_writes_what_the_file_holds) {
  for (const bool attaches : {false, true}) {
    const auto attached = attaches ? engine_->memory()->attach(region_).value() : nullptr;
    fill(region_, std::vector<std::byte>(size_bytes));
    run(OpKind::read, attached.get());
    EXPECT_TRUE(holds_content(bytes_of(region_), 1, 0));
    fill(region_, content(2, 0, size_bytes));
    run(OpKind::write, attached.get());
    EXPECT_TRUE(holds_content(read_file(path_), 2, 0));
    write_file(path_, content(1, 0, size_bytes));
  }
}

TEST_F(RealCuFile, counts_what_went_through_host_memory_as_such) {
  run(OpKind::read);
  const auto counts = library_->counts();
  if (!counts) GTEST_SKIP() << "this release counts nothing that we can read";
  std::cout << "operations: p2pdma " << counts->p2pdma << ", nvidia-fs " << counts->nvidia_fs << ", posix "
            << counts->posix << '\n';
  if (store_->device_route() == Route::cufile_compat) {
    EXPECT_EQ(counts->p2pdma + counts->nvidia_fs, 0U);
  }
}

TEST_F(RealCuFile, reads_in_batches) {
  if (!library_->api().has_batches()) GTEST_SKIP() << "this release has no batches";
  cufile::BatchSwitch batches;
  cufile::Batch batch(*library_, batches);
  std::vector<cufile::Transfer> transfers;
  const auto handle = static_cast<cufile::Store&>(*store_).handle();
  for (const Op& op : ops(OpKind::read, {})) {
    transfers.push_back({op, handle, region_.data, static_cast<off_t>(op.offset), *store_->device_route()});
  }
  fill(region_, std::vector<std::byte>(size_bytes));
  const cuda::Current current(gpu());
  for (std::size_t i = 0; i < blocks; i += 16) {
    ASSERT_TRUE(batch.run(std::span(transfers).subspan(i, 16), *this));
  }
  ASSERT_EQ(home_.size(), blocks);
  for (const Done& done : home_) EXPECT_EQ(done.bytes, block) << done.system_error;
  EXPECT_TRUE(batches.on);
  EXPECT_TRUE(holds_content(bytes_of(region_), 1, 0));
}

}  // namespace
}  // namespace penstock::test
