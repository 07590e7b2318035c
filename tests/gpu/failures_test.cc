// What GPUs refuse, in words: every failed request says what was short or wrong, and what to do.
#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

constexpr std::size_t copied_bytes = 4 * mib;

struct Refusal {
  const char* function;
  cuda::CuResult result;
  Code code;
  const char* part_of_message;
};

class GpuFailure : public GpuTest, public testing::WithParamInterface<Refusal> {
 protected:
  // Those that are there would be used again. REQUIRES: no other can be made.
  std::vector<cuda::CuEvent> take_free_events() {
    std::vector<cuda::CuEvent> events;
    while (auto event = gpu().take_event()) events.push_back(*event);
    return events;
  }
};
INSTANTIATE_TEST_SUITE_P(
    Of, GpuFailure,
    testing::Values(Refusal{"cuEventCreate", cuda::cu_out_of_memory, Code::out_of_memory, "event on cuda:0"},
                    Refusal{"cuEventRecord", cuda::cu_invalid_value, Code::device_error, "CUDA_ERROR_INVALID_VALUE"},
                    Refusal{"cuEventRecord", cuda::cu_not_supported, Code::unsupported, "CUDA_ERROR_NOT_SUPPORTED"},
                    Refusal{"cuMemcpyHtoDAsync_v2", cuda::cu_invalid_value, Code::device_error, "copy to cuda:0"},
                    Refusal{"cuMemcpyHtoDAsync_v2", cuda::cu_out_of_memory, Code::out_of_memory, "copy to cuda:0"},
                    Refusal{"cuMemcpyHtoDAsync_v2", cuda::cu_illegal_address, Code::device_lost, "copy to cuda:0"},
                    Refusal{"cuLaunchKernel", cuda::cu_invalid_value, Code::device_error, "copy to cuda:0"},
                    Refusal{"cuMemcpyDtoHAsync_v2", cuda::cu_out_of_memory, Code::out_of_memory, "copy from cuda:0"}),
    [](const auto& instance) {
      return std::string(instance.param.function) + "_" + std::to_string(instance.param.result);
    });

TEST_P(GpuFailure, has_a_cause_and_a_remedy) {
  PENSTOCK_NEEDS_FAKE();
  const Refusal& refusal = GetParam();
  write_file(folder_.path("file"), content(1, 0, copied_bytes));
  options_.lanes = 2;
  Context context = make_context();
  const Store store = context.open(folder_.path("file"), {.access = Access::write}).value();
  const Buffer memory = context.allocate(Domain::cuda(0), copied_bytes).value();
  // One long range, one small one on the caller's thread, many that go together, and a write that has ends.
  std::vector<Range> many;
  for (std::size_t i = 0; i < 64; ++i) many.push_back({&store, i * 4096, memory.region().part(i * 4096, 100)});
  const auto run_all = [&] {
    return std::array{context.read(store, 0, memory.region()), context.read(store, 0, memory.region().part(0, 4096)),
                      context.transfer(Direction::read, many),
                      context.write(store, 100, memory.region().part(0, copied_bytes - 200))};
  };
  // Copies that no event follows can't be told to have ended, so that one comes with the next try.
  const bool always = refusal.function != std::string_view("cuEventRecord");
  fake_->fail_call(refusal.function, 1, refusal.result, always ? 1 : 0);
  std::vector<cuda::CuEvent> events;
  if (refusal.function == std::string_view("cuEventCreate")) events = take_free_events();
  std::size_t failed = 0;
  for (const Report& report : run_all()) {
    if (report.ok()) continue;  // it did without
    ++failed;
    const Error& error = *report.error;
    EXPECT_EQ(error.code, refusal.code) << error.message;
    EXPECT_NE(error.message.find(refusal.part_of_message), std::string::npos) << error.message;
    EXPECT_FALSE(error.hint.empty()) << error.message;
    if (error.code == Code::out_of_memory) {
      EXPECT_NE(error.hint.find("GPU"), std::string::npos) << error.hint;
    }
  }
  EXPECT_GT(failed, 0U);
  fake_->clear_injections();
  for (const cuda::CuEvent event : events) gpu().give_back_event(event);
  for (const Report& report : run_all()) {
    EXPECT_TRUE(report.ok()) << "and the Context goes on: " << report.error->message;
  }
}

TEST_F(GpuTest, memory_that_is_copied_without_an_event_is_not_used_again_before_the_copy_has_ended) {
  PENSTOCK_NEEDS_FAKE();
  write_file(folder_.path("file"), content(1, 0, mib));
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), mib).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  fake_->set_bandwidth(0, 4 * mib);
  fake_->fail_call("cuEventRecord", 1, cuda::cu_invalid_value, 0);
  const std::uint64_t before = fake_->counters().bytes_to_device;
  const Report report = context.read(store, 0, memory.region());
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(fake_->counters().bytes_to_device, before + mib);
}

TEST_F(GpuTest, staging_memory_that_can_t_be_registered_costs_speed_and_no_request) {
  PENSTOCK_NEEDS_FAKE();
  write_file(folder_.path("file"), content(1, 0, copied_bytes));
  for (const char* function : {"cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2"}) {
    fake_->fail_call(function, 1, cuda::cu_out_of_memory, 1);
    Context context = make_context();
    const Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), copied_bytes).value();
    const Report report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
    fake_->clear_injections();
  }
}

}  // namespace
}  // namespace penstock::test
