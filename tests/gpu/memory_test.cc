// GPU memory: ours, and that of others.
#include <dlfcn.h>

#include "core/memory_map.h"
#include "core/test_key_engine.h"
#include "cuda/control_memory.h"
#include "cuda/quiet.h"
#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

class GpuMemory : public GpuTest {};

TEST_F(GpuMemory, the_device_is_found_from_a_pointer) {
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  const Region found = find_cuda_region(memory.data() + 100, 1000).value();
  EXPECT_EQ(found.domain, Domain::cuda(0));
  EXPECT_EQ(found.data, memory.data() + 100);
  EXPECT_EQ(find_cuda_region(memory.data(), 1ULL << 40).error().code, Code::out_of_range);
  int on_the_host = 0;
  EXPECT_EQ(find_cuda_region(&on_the_host, 4).error().code, Code::device_error);
}

TEST_F(GpuMemory, memory_that_was_freed_is_refused_by_name) {
  write_file(folder_.path("file"), content(1, 0, mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const cuda::Current current(gpu());
  cuda::CuDevicePtr address = 0;
  ASSERT_EQ(driver_->api().memory_allocate(&address, 64 * mib), cuda::cu_success);
  const Region memory{reinterpret_cast<std::byte*>(address), mib, Domain::cuda(0)};
  EXPECT_TRUE(context.read(store, 0, memory).ok()) << "memory of somebody else is as good as ours";
  EXPECT_TRUE(holds_content(bytes_of(memory), 1, 0));
  ASSERT_EQ(driver_->api().memory_free(address), cuda::cu_success);
  const Report report = context.read(store, 0, memory);
  ASSERT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.error->code, Code::device_error);
  EXPECT_NE(report.error->hint.find("freed"), std::string::npos);
}

TEST_F(GpuMemory, a_range_past_the_end_of_its_allocation_is_refused) {
  write_file(folder_.path("file"), content(1, 0, 8 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const cuda::Current current(gpu());
  cuda::CuDevicePtr address = 0;
  ASSERT_EQ(driver_->api().memory_allocate(&address, 2 * mib), cuda::cu_success);
  const Region memory{reinterpret_cast<std::byte*>(address), 8 * mib, Domain::cuda(0)};
  const Report report = context.read(store, 0, memory);
  ASSERT_EQ(report.outcome, Outcome::failed);
  // What lies behind it may be a Buffer of another test, in which the range then lies partly.
  EXPECT_TRUE(report.error->code == Code::invalid_argument || report.error->code == Code::out_of_range)
      << report.error->message;
  ASSERT_EQ(driver_->api().memory_free(address), cuda::cu_success);
}

// The parts of the driver that only foreign memory needs, as in CUDA's manual.
struct ForeignAllocators {
  struct Location {
    int type;  // 1: a device
    int id;
  };
  struct Properties {
    int type;  // 1: pinned to its place
    int handle_types;
    Location location;
    void* windows;
    unsigned char flags[8];
  };
  struct Access {
    Location location;
    int flags;  // 3: read and write
  };
  template <typename Function>
  static bool find(const char* symbol, Function*& function) {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    function = reinterpret_cast<Function*>(::dlsym(library, symbol));
    return function != nullptr;
  }

  int (*allocate_async)(cuda::CuDevicePtr*, std::size_t, cuda::CuStream) = nullptr;
  int (*free_async)(cuda::CuDevicePtr, cuda::CuStream) = nullptr;
  int (*reserve)(cuda::CuDevicePtr*, std::size_t, std::size_t, cuda::CuDevicePtr, unsigned long long) = nullptr;
  int (*create)(unsigned long long*, std::size_t, const Properties*, unsigned long long) = nullptr;
  int (*map)(cuda::CuDevicePtr, std::size_t, std::size_t, unsigned long long, unsigned long long) = nullptr;
  int (*set_access)(cuda::CuDevicePtr, std::size_t, const Access*, std::size_t) = nullptr;

  bool load() {
    return find("cuMemAllocAsync", allocate_async) && find("cuMemFreeAsync", free_async) &&
           find("cuMemAddressReserve", reserve) && find("cuMemCreate", create) && find("cuMemMap", map) &&
           find("cuMemSetAccess", set_access);
  }
};

TEST_F(GpuMemory, memory_of_every_allocator_is_read_into) {
  ForeignAllocators foreign;
  if (!foreign.load()) GTEST_SKIP() << "the driver has no stream-ordered or virtual memory";
  write_file(folder_.path("file"), content(3, 0, 4 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const cuda::Current current(gpu());

  cuda::CuStream stream = make_stream();
  cuda::CuDevicePtr ordered = 0;
  ASSERT_EQ(foreign.allocate_async(&ordered, 4 * mib, stream), cuda::cu_success);
  ASSERT_EQ(driver_->api().stream_synchronize(stream), cuda::cu_success);

  cuda::CuDevicePtr mapped = 0;
  unsigned long long handle = 0;
  const ForeignAllocators::Properties properties{1, 0, {1, 0}, nullptr, {}};
  const ForeignAllocators::Access access{{1, 0}, 3};
  ASSERT_EQ(foreign.reserve(&mapped, 4 * mib, 0, 0, 0), cuda::cu_success);
  for (const std::uint64_t place : {0 * mib, 2 * mib}) {
    ASSERT_EQ(foreign.create(&handle, 2 * mib, &properties, 0), cuda::cu_success);
    ASSERT_EQ(foreign.map(mapped + place, 2 * mib, 0, handle, 0), cuda::cu_success);
  }
  ASSERT_EQ(foreign.set_access(mapped, 4 * mib, &access, 1), cuda::cu_success);

  for (const cuda::CuDevicePtr address : {ordered, mapped}) {
    const Region memory = find_cuda_region(reinterpret_cast<void*>(address), 4 * mib).value();
    EXPECT_EQ(memory.domain, Domain::cuda(0));
    const Report report = context.read(store, 0, memory);
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory), 3, 0));
  }
  EXPECT_EQ(foreign.free_async(ordered, stream), cuda::cu_success);
}

TEST_F(GpuMemory, virtual_memory_of_several_pieces_is_one_and_ordinary_memory_ends_where_it_ends) {
  PENSTOCK_NEEDS_FAKE();
  write_file(folder_.path("file"), content(3, 0, 4 * mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const cuda::Current current(gpu());
  for (const bool is_virtual : {true, false}) {
    fake_->set_pieces(is_virtual ? mib : 0);
    cuda::CuDevicePtr address = 0;
    ASSERT_EQ(driver_->api().memory_allocate(&address, 3 * mib), cuda::cu_success);
    auto* const data = cuda::device_pointer(address);
    const auto inner = find_cuda_region(data + mib / 2, 2 * mib);
    ASSERT_TRUE(inner.ok()) << inner.error().message;
    EXPECT_TRUE(context.read(store, mib / 2, *inner).ok());
    EXPECT_TRUE(holds_content(bytes_of(*inner), 3, mib / 2));
    EXPECT_EQ(find_cuda_region(data + mib / 2, 3 * mib).error().code, Code::out_of_range);
    ASSERT_EQ(driver_->api().memory_free(address), cuda::cu_success);
  }
}

TEST_F(GpuMemory, a_device_that_is_not_there_is_named) {
  Context context = make_context();
  const auto missing = context.allocate(Domain::cuda(77), mib);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::no_device);
  EXPECT_NE(missing.error().message.find("cuda:77"), std::string::npos);
}

TEST_F(GpuMemory, memory_of_another_device_is_refused) {
  if (driver_->devices().size() < 2) GTEST_SKIP() << "one GPU";
  write_file(folder_.path("file"), content(1, 0, mib));
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(1), mib).value();
  const Region wrong{memory.data(), mib, Domain::cuda(0)};
  const Report report = context.read(store, 0, wrong);
  EXPECT_EQ(report.error->code, Code::invalid_argument);
  EXPECT_NE(report.error->message.find("cuda:1"), std::string::npos);
}

TEST_F(GpuMemory, more_than_the_gpu_has_is_a_clear_error) {
  Context context = make_context();
  const auto result = context.allocate(Domain::cuda(0), 1ULL << 45);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Code::out_of_memory);
  EXPECT_FALSE(result.error().hint.empty());
}

TEST_F(GpuMemory, small_freed_blocks_are_used_again_and_large_ones_go_back) {
  PENSTOCK_NEEDS_FAKE();
  Context context = make_context();
  std::byte* const first = context.allocate(Domain::cuda(0), mib).value().data();
  EXPECT_EQ(context.allocate(Domain::cuda(0), mib).value().data(), first);
  const auto before = fake_->counters().allocations;
  { const Buffer large = context.allocate(Domain::cuda(0), 64 * mib).value(); }
  EXPECT_TRUE(eventually([&] { return fake_->counters().allocations <= before; }));
}

TEST_F(GpuMemory, pinned_memory_is_registered_with_cuda_once_a_gpu_is_in_use) {
  Context context = make_context();
  ASSERT_TRUE(gpu().is_active());
  const Buffer pinned = context.allocate(Domain::pinned(), mib).value();
  unsigned type = 0;
  const auto address = reinterpret_cast<cuda::CuDevicePtr>(pinned.data());
  ASSERT_EQ(driver_->api().pointer_get_attribute(&type, cuda::cu_pointer_memory_type, address), cuda::cu_success);
  EXPECT_EQ(type, cuda::cu_memory_type_host);
}

TEST_F(GpuMemory, nothing_is_left_behind_by_a_context) {
  PENSTOCK_NEEDS_FAKE();
  write_file(folder_.path("file"), content(1, 0, 8 * mib));
  const auto use = [&] {
    Context context = make_context();
    Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), 8 * mib).value();
    ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok()) << "every lane has its share, however the work is spread";
    ASSERT_TRUE(context.read(store, 0, memory.region()).ok());
  };
  const FakeCudaCounters before = fake_->counters();  // of other tests in this process
  use();
  const FakeCudaCounters once = fake_->counters();
  use();
  const FakeCudaCounters twice = fake_->counters();
  EXPECT_EQ(once.streams, twice.streams);
  EXPECT_EQ(once.allocations, twice.allocations);
  EXPECT_EQ(once.registrations, twice.registrations);
  EXPECT_EQ(once.events, twice.events);
  EXPECT_EQ(twice.allocations, before.allocations);
}

TEST_F(GpuMemory, control_memory_that_the_gpu_can_t_reach_is_given_back) {
  PENSTOCK_NEEDS_FAKE();
  using cuda::ControlMemory;
  const auto take = [&] { return ControlMemory::of_process().take(gpu(), ControlMemory::largest_bytes); };
  cuda::Quiet::of_process().catch_up(std::chrono::seconds(10));
  const std::uint64_t before = fake_->counters().registrations;
  fake_->fail_call("cuMemHostGetDevicePointer_v2", 1, cuda::cu_out_of_memory, 1);
  std::vector<ControlMemory::Cell> cells;
  auto cell = take();
  for (; cell; cell = take()) cells.push_back(*cell);  // those that are free already
  const std::uint64_t registered = fake_->calls("cuMemHostRegister_v2");
  EXPECT_EQ(take().error().code, Code::out_of_memory);
  EXPECT_EQ(fake_->calls("cuMemHostRegister_v2"), registered + 1);
  EXPECT_TRUE(eventually([&] { return fake_->counters().registrations == before; }));
  fake_->clear_injections();
  for (const auto& each : cells) ControlMemory::of_process().give_back(each);
}

TEST_F(GpuMemory, other_memory_at_the_address_of_what_was_attached_is_not_taken_for_it) {
  PENSTOCK_NEEDS_FAKE();
  core::KeyEngine engine(engine::HostReach::none, true);
  core::MemoryMap map({&engine});
  const cuda::Current current(gpu());
  cuda::CuDevicePtr address = 0;
  ASSERT_EQ(driver_->api().memory_allocate(&address, mib), cuda::cu_success);
  const Region memory{cuda::device_pointer(address), mib, Domain::cuda(0)};
  const auto is_known = [&] { return core::MemoryMap::find(*map.snapshot(), memory.data + 4096, 4096) != nullptr; };
  ASSERT_TRUE(map.attach(memory).ok());
  EXPECT_TRUE(is_known());
  EXPECT_EQ(map.attach(memory).error().code, Code::invalid_argument);

  ASSERT_EQ(driver_->api().memory_free(address), cuda::cu_success);
  EXPECT_FALSE(is_known()) << "it is gone";
  cuda::CuDevicePtr again = 0;
  ASSERT_EQ(driver_->api().memory_allocate(&again, mib), cuda::cu_success);
  ASSERT_EQ(again, address) << "the fake uses an address again at once";
  EXPECT_FALSE(is_known());
  ASSERT_TRUE(map.attach(memory).ok());
  EXPECT_TRUE(is_known());
  EXPECT_EQ(engine.attached.size(), 1U) << "the old registration is gone";
  ASSERT_TRUE(map.detach(memory).ok());
  EXPECT_TRUE(engine.attached.empty());
  ASSERT_EQ(driver_->api().memory_free(address), cuda::cu_success);
}

}  // namespace
}  // namespace penstock::test
