#include "fake_cuda_test.h"

namespace fake_cuda_test {
namespace {

constexpr CuResult cu_stream_capture_unsupported = 900;
constexpr CuResult cu_stream_capture_invalidated = 901;
constexpr CuResult cu_captured_event = 907;
constexpr CuResult cu_stream_capture_wrong_thread = 908;

class FakeCudaCaptures : public FakeCudaDriver {
 protected:
  CuStream capturing(int mode, unsigned flags = cu_stream_non_blocking) {
    const CuStream made = stream(flags);
    EXPECT_EQ(captures.begin(made, mode), cu_success);
    return made;
  }
  CuResult end(CuStream of) {
    CuGraph graph = nullptr;
    return captures.end(of, &graph);
  }
  // The mode that it had.
  int set_mode(int mode) {
    EXPECT_EQ(captures.exchange_mode(&mode), cu_success);
    return mode;
  }
  // An unsafe call of another thread, in that mode.
  CuResult allocate_elsewhere(int mode) {
    CuResult result = cu_success;
    std::thread([&] {
      EXPECT_EQ(cu.context_push(context), cu_success);
      set_mode(mode);
      result = allocate();
    }).join();
    return result;
  }
  CuResult allocate() {
    CuDevicePtr address = 0;
    return cu.memory_allocate(&address, page);
  }
};

TEST_F(FakeCudaCaptures, do_nothing_until_their_graph_is_launched) {
  const CuDevicePtr address = device_memory();
  unsigned char* const slot = pinned(7);
  const CuStream on = capturing(cu_capture_mode_global);
  int status = -1;
  EXPECT_EQ(cu.stream_is_capturing(on, &status), cu_success);
  EXPECT_EQ(status, 1);
  ASSERT_EQ(cu.copy_to_device(address, slot, page, on), cu_success);
  CuGraph graph = nullptr;
  ASSERT_EQ(captures.end(on, &graph), cu_success);
  EXPECT_EQ(cu.stream_is_capturing(on, &status), cu_success);
  EXPECT_EQ(status, cu_capture_status_none);
  ASSERT_EQ(cu.stream_synchronize(on), cu_success);
  EXPECT_EQ(peek(address), 0);

  CuGraphExecutable executable = nullptr;
  ASSERT_EQ(captures.instantiate(&executable, graph, 0), cu_success);
  for (const int round : {8, 9}) {
    std::memset(slot, round, page);
    ASSERT_EQ(captures.launch(executable, on), cu_success);
    ASSERT_EQ(cu.stream_synchronize(on), cu_success);
    EXPECT_EQ(peek(address), round);
  }
  EXPECT_EQ(captures.destroy_executable(executable), cu_success);
  EXPECT_EQ(captures.destroy(graph), cu_success);
}

// As the manual says of cuThreadExchangeStreamCaptureMode.
TEST_F(FakeCudaCaptures, are_spoilt_by_unsafe_calls_as_the_modes_of_both_say) {
  for (const int capture : {cu_capture_mode_global, cu_capture_mode_thread_local, cu_capture_mode_relaxed}) {
    for (const int thread : {cu_capture_mode_global, cu_capture_mode_thread_local, cu_capture_mode_relaxed}) {
      const CuStream first = capturing(capture);
      const bool elsewhere_spoils = capture == cu_capture_mode_global && thread == cu_capture_mode_global;
      EXPECT_EQ(allocate_elsewhere(thread), elsewhere_spoils ? cu_stream_capture_unsupported : cu_success);
      EXPECT_EQ(end(first), elsewhere_spoils ? cu_stream_capture_invalidated : cu_success) << capture << thread;

      const CuStream second = capturing(capture);
      const bool here_spoils = capture != cu_capture_mode_relaxed && thread != cu_capture_mode_relaxed;
      const int before = set_mode(thread);
      EXPECT_EQ(allocate(), here_spoils ? cu_stream_capture_unsupported : cu_success) << capture << thread;
      EXPECT_EQ(set_mode(before), thread);
      EXPECT_EQ(end(second), here_spoils ? cu_stream_capture_invalidated : cu_success) << capture << thread;
    }
  }
  EXPECT_NE(last_breach().find("cuMemAlloc_v2"), std::string::npos) << last_breach();
}

TEST_F(FakeCudaCaptures, are_not_spoilt_by_questions_and_by_work_for_other_streams) {
  const CuDevicePtr address = device_memory();
  unsigned char* const slot = pinned(7);
  const CuStream other = stream();
  const CuEvent done = event();
  const CuStream on = capturing(cu_capture_mode_global);
  int number = 0;
  CuContext found = nullptr;
  EXPECT_EQ(cu.device_get_count(&number), cu_success);
  EXPECT_EQ(cu.stream_is_capturing(other, &number), cu_success);
  EXPECT_EQ(cu.stream_get_context(on, &found), cu_success);
  EXPECT_EQ(cu.copy_to_device(address, slot, page, other), cu_success);
  EXPECT_EQ(cu.event_record(done, other), cu_success);
  EXPECT_EQ(end(on), cu_success);
  EXPECT_EQ(query_for(done, 10s), cu_success);
  EXPECT_EQ(peek(address), 7);
}

TEST_F(FakeCudaCaptures, are_spoilt_in_every_mode_by_what_has_to_know_how_far_they_are) {
  const CuEvent captured = event();
  set_mode(cu_capture_mode_relaxed);
  CuStream on = capturing(cu_capture_mode_relaxed);
  EXPECT_EQ(cu.stream_synchronize(on), cu_stream_capture_unsupported);
  EXPECT_EQ(end(on), cu_stream_capture_invalidated);

  on = capturing(cu_capture_mode_relaxed);
  ASSERT_EQ(cu.event_record(captured, on), cu_success);
  EXPECT_EQ(cu.event_query(captured), cu_captured_event);
  EXPECT_EQ(end(on), cu_stream_capture_invalidated);

  on = capturing(cu_capture_mode_relaxed);
  void* const pageable_slot = pageable(0);
  EXPECT_EQ(cu.copy_from_device(pageable_slot, device_memory(), page, on), cu_stream_capture_unsupported);
  EXPECT_EQ(end(on), cu_stream_capture_invalidated);

  set_mode(cu_capture_mode_global);
}

TEST_F(FakeCudaCaptures, should_hold_no_waits_for_values_of_the_library) {
  std::uint32_t* const gate = word();
  const CuStream on = capturing(cu_capture_mode_global);
  EXPECT_EQ(wait_for(on, gate, 1), cu_success);
  EXPECT_EQ(fake.counters().breaches, 0U) << "a program may";
  set_mode(cu_capture_mode_relaxed);
  EXPECT_EQ(wait_for(on, gate, 1), cu_success);
  set_mode(cu_capture_mode_global);
  EXPECT_EQ(end(on), cu_success);
  EXPECT_EQ(fake.counters().breaches, 1U) << "nothing in the graph resets the word";
}

TEST_F(FakeCudaCaptures, of_a_blocking_stream_take_the_legacy_stream_away) {
  int status = -1;
  CuStream on = capturing(cu_capture_mode_global);
  EXPECT_EQ(cu.stream_is_capturing(nullptr, &status), cu_success);
  EXPECT_EQ(end(on), cu_success);

  on = capturing(cu_capture_mode_global, 0);
  EXPECT_EQ(cu.stream_is_capturing(nullptr, &status), cu_stream_capture_implicit);
  EXPECT_EQ(end(on), cu_success);

  const CuEvent done = event();
  on = capturing(cu_capture_mode_global, 0);
  EXPECT_EQ(cu.event_record(done, nullptr), cu_stream_capture_implicit);
  EXPECT_EQ(end(on), cu_stream_capture_invalidated);
  EXPECT_EQ(cu.event_record(done, nullptr), cu_success);
}

TEST_F(FakeCudaCaptures, end_on_the_thread_that_began_them) {
  const CuStream on = capturing(cu_capture_mode_thread_local);
  std::thread([&] {
    EXPECT_EQ(cu.context_push(context), cu_success);
    EXPECT_EQ(end(on), cu_stream_capture_wrong_thread);
  }).join();
  EXPECT_EQ(end(on), cu_success);
  EXPECT_EQ(captures.begin(nullptr, cu_capture_mode_global), cu_invalid_value) << "the legacy stream has no captures";
}

}  // namespace
}  // namespace fake_cuda_test
