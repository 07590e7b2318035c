#include <atomic>

#include "fake_cuda_test.h"
#include "tsan.h"

namespace fake_cuda_test {
namespace {

TEST_F(FakeCudaDriver, runs_work_after_the_call_that_queued_it) {
  const CuDevicePtr address = device_memory();
  fake.hang(0, 1);
  const CuStream on = stream();
  ASSERT_EQ(cu.copy_to_device(address, pinned(7), slot_bytes, on), cu_success);
  const CuEvent done = recorded(on);
  EXPECT_EQ(query_for(done, 20ms), cu_not_ready);
  EXPECT_EQ(peek(address), 0);
  fake.hang(0, 0);
  EXPECT_EQ(query_for(done, 10s), cu_success);
  EXPECT_EQ(peek(address), 7);
}

// The write to the slot is ordered by the wait-value here, so that the sanitizer has nothing to object.

TEST_F(FakeCudaDriver, orders_streams_by_recorded_events_only) {
  std::uint32_t* const gate = word();
  const CuStream first = stream();
  const CuStream second = stream();
  const CuEvent never = event();
  EXPECT_EQ(cu.event_query(never), cu_success);
  ASSERT_EQ(cu.stream_wait_event(second, never, 0), cu_success);
  EXPECT_EQ(query_for(recorded(second), 10s), cu_success);

  ASSERT_EQ(wait_for(first, gate, 1), cu_success);
  const CuEvent behind_gate = recorded(first);
  ASSERT_EQ(cu.stream_wait_event(second, behind_gate, 0), cu_success);
  const CuEvent after = recorded(second);
  EXPECT_EQ(query_for(after, 20ms), cu_not_ready);
  release(gate, 1);
  EXPECT_EQ(query_for(after, 10s), cu_success);
}

TEST_F(FakeCudaDriver, waits_for_values_cyclically) {
  std::uint32_t* const gate = word();
  const CuStream on = stream();
  release(gate, 0xfffffff0U);
  ASSERT_EQ(wait_for(on, gate, 5), cu_success);
  const CuEvent done = recorded(on);
  EXPECT_EQ(query_for(done, 20ms), cu_not_ready);
  release(gate, 6);
  EXPECT_EQ(query_for(done, 10s), cu_success);
  EXPECT_EQ(wait_for(on, reinterpret_cast<std::uint32_t*>(pageable(0)), 1), cu_invalid_value);
}

TEST_F(FakeCudaDriver, lets_a_destroyed_stream_finish) {
  const CuDevicePtr address = device_memory();
  const CuStream on = stream();
  fake.hang(0, 1);
  ASSERT_EQ(cu.copy_to_device(address, pinned(7), slot_bytes, on), cu_success);
  const CuEvent done = recorded(on);
  EXPECT_EQ(cu.stream_destroy(on), cu_success);
  EXPECT_EQ(cu.stream_synchronize(on), cu_invalid_handle);
  EXPECT_EQ(fake.counters().streams, 0U);
  fake.hang(0, 0);
  EXPECT_EQ(query_for(done, 10s), cu_success);
  EXPECT_EQ(peek(address), 7);
}

TEST_F(FakeCudaDriver, orders_the_null_stream_with_blocking_streams_both_ways) {
  std::uint32_t* const gate = word();
  const CuStream blocking = stream(0);
  const CuStream free_stream = stream(cu_stream_non_blocking);
  ASSERT_EQ(wait_for(blocking, gate, 1), cu_success);
  const CuEvent null_done = recorded(nullptr);
  const CuEvent free_done = recorded(free_stream);
  EXPECT_EQ(query_for(free_done, 10s), cu_success);
  EXPECT_EQ(query_for(null_done, 20ms), cu_not_ready);
  release(gate, 1);
  EXPECT_EQ(query_for(null_done, 10s), cu_success);

  ASSERT_EQ(wait_for(nullptr, gate, 2), cu_success);
  const CuEvent blocking_done = recorded(blocking);
  const CuEvent per_thread_done = recorded(reinterpret_cast<CuStream>(2));
  EXPECT_EQ(query_for(recorded(free_stream), 10s), cu_success);
  EXPECT_EQ(query_for(blocking_done, 20ms), cu_not_ready);
  EXPECT_EQ(cu.event_query(per_thread_done), cu_not_ready);
  release(gate, 2);
  EXPECT_EQ(query_for(blocking_done, 10s), cu_success);
  EXPECT_EQ(query_for(per_thread_done, 10s), cu_success);
}

TEST_F(FakeCudaDriver, tells_which_context_a_stream_is_of) {
  CuContext found = nullptr;
  EXPECT_EQ(cu.stream_get_context(stream(), &found), cu_success);
  EXPECT_EQ(found, context);
  EXPECT_EQ(cu.stream_get_context(nullptr, &found), cu_success);
  EXPECT_EQ(found, context);
}

TEST_F(FakeCudaDriver, holds_up_streams_that_share_a_connection_with_one_that_waits) {
  fake.reset();
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  start();
  std::uint32_t* const gate = word();
  const CuStream waiting = stream();
  const CuStream behind = stream();
  const CuStream urgent = stream(cu_stream_non_blocking, -5);
  const CuStream copying = stream();
  const CuDevicePtr address = device_memory();
  void* const slot = pinned(7);
  ASSERT_EQ(wait_for(waiting, gate, 1), cu_success);
  const CuEvent held_up = recorded(behind);
  const CuEvent held_up_too = recorded(urgent);
  ASSERT_EQ(cu.copy_to_device(address, slot, slot_bytes, copying), cu_success);
  EXPECT_EQ(query_for(recorded(copying), 10s), cu_success) << "copy engines have other connections";
  EXPECT_EQ(query_for(held_up, 20ms), cu_not_ready);
  EXPECT_EQ(cu.event_query(held_up_too), cu_not_ready) << "priorities don't help";
  release(gate, 1);
  EXPECT_EQ(query_for(held_up, 10s), cu_success);
  EXPECT_EQ(query_for(held_up_too, 10s), cu_success);

  fake.set_connections(2);
  const CuStream own = stream();
  const CuStream other = stream();
  ASSERT_EQ(wait_for(own, gate, 2), cu_success);
  EXPECT_EQ(query_for(recorded(other), 10s), cu_success);
  release(gate, 2);
}

TEST_F(FakeCudaDriver, blocks_what_takes_memory_away_or_loads_code_while_a_stream_waits_for_a_value) {
  std::uint32_t* const gate = word();
  const CuStream on = stream();
  unsigned char* const known = pinned(0);
  ASSERT_EQ(wait_for(on, gate, 1), cu_success);
  fake.set_synchronizing_calls_block(1, 20);
  CuDevicePtr address = 0;
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_success) << "allocating goes on";
  EXPECT_EQ(cu.host_register(pageable(0), page, cu_host_register_portable), cu_success) << "so does registering";
  EXPECT_EQ(fake.counters().breaches, 0U);
  EXPECT_EQ(cu.memory_free(address), cu_unknown);
  EXPECT_EQ(fake.counters().breaches, 1U);
  EXPECT_NE(last_breach().find("cuMemFree_v2"), std::string::npos) << last_breach();
  EXPECT_EQ(cu.host_unregister(known), cu_unknown);
  CuModule module = nullptr;
  EXPECT_EQ(cu.module_load_data(&module, "image"), cu_unknown);
  EXPECT_EQ(fake.counters().breaches, 3U);

  CuStream another = nullptr;
  EXPECT_EQ(cu.stream_create(&another, cu_stream_non_blocking, 0), cu_success);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(wait_for(another, gate, 1), cu_success);
  EXPECT_EQ(cu.stream_create(&another, cu_stream_non_blocking, 0), cu_unknown) << "where many wait";
  EXPECT_EQ(fake.counters().breaches, 4U);

  fake.set_synchronizing_calls_block(1, 10000);
  std::thread releasing([&] {
    std::this_thread::sleep_for(10ms);
    release(gate, 1);
  });
  EXPECT_EQ(cu.memory_free(address), cu_success);
  releasing.join();
  EXPECT_EQ(cu.memory_allocate(&address, page), cu_success);
  ASSERT_EQ(wait_for(on, gate, 2), cu_success);

  fake.set_synchronizing_calls_block(0, 0);
  EXPECT_EQ(cu.memory_free(address), cu_success);
  release(gate, 2);
}

TEST_F(FakeCudaDriver, releases_all_who_wait_when_a_device_breaks) {
  std::uint32_t* const gate = word();
  const CuStream waiting = stream();
  const CuStream copying = stream();
  const CuDevicePtr address = device_memory();
  unsigned char* const slot = pinned(7);
  ASSERT_EQ(wait_for(waiting, gate, 1), cu_success);
  fake.fail_copy(0, 2, cu_ecc_uncorrectable);
  EXPECT_EQ(cu.copy_to_device(address, slot, page, copying), cu_success);
  EXPECT_EQ(cu.stream_synchronize(copying), cu_success);
  EXPECT_EQ(cu.copy_to_device(address, slot, page, copying), cu_success);
  EXPECT_EQ(cu.stream_synchronize(waiting), cu_ecc_uncorrectable);
}

TEST_F(FakeCudaDriver, copies_no_faster_than_its_bandwidth) {
  const CuDevicePtr address = device_memory();
  fake.set_bandwidth(0, slot_bytes * 20);
  const CuStream on = stream();
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(cu.copy_to_device(address, pinned(7), slot_bytes, on), cu_success);
  ASSERT_EQ(cu.stream_synchronize(on), cu_success);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
}

TEST_F(FakeCudaDriver, keeps_order_under_random_delays_and_many_threads) {
  fake.set_delays(42, 200);
  const CuDevicePtr address = device_memory();
  std::vector<unsigned char*> host_slots;
  for (int i = 0; i < 8; ++i) host_slots.push_back(pinned(0));
  std::vector<std::thread> lanes;
  for (std::size_t lane = 0; lane < 4; ++lane) {
    lanes.emplace_back([&, lane] {
      ASSERT_EQ(cu.context_push(context), cu_success);
      const CuStream on = stream();
      unsigned char* const out = host_slots[lane];
      unsigned char* const in = host_slots[lane + 4];
      for (unsigned char round = 1; round <= 20; ++round) {
        std::memset(out, round, page);
        ASSERT_EQ(cu.copy_to_device(address + lane * page, out, page, on), cu_success);
        ASSERT_EQ(cu.copy_from_device(in, address + lane * page, page, on), cu_success);
        const CuEvent done = recorded(on);
        ASSERT_EQ(query_for(done, 10s), cu_success);
        ASSERT_EQ(in[page - 1], round);
        ASSERT_EQ(cu.event_destroy(done), cu_success);
      }
      ASSERT_EQ(cu.stream_destroy(on), cu_success);
    });
  }
  for (auto& lane : lanes) lane.join();
  EXPECT_EQ(fake.counters().copies, 160U);
  EXPECT_EQ(fake.counters().events, 0U);
}

// Death tests run in a process of their own, whose end the sanitizer marks when it has found a race.
TEST_F(FakeCudaDriver, lets_the_thread_sanitizer_see_a_slot_that_is_reused_too_early) {
#ifndef FAKE_CUDA_TSAN
  GTEST_SKIP() << "this build has no thread sanitizer";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int exit_code_of_sanitizer = 66;
  const auto reuse_early = [&] {
    const CuDevicePtr address = device_memory();
    unsigned char* const slot = pinned(7);
    const CuStream on = stream();
    fake.hang(0, 1);
    cu.copy_to_device(address, slot, slot_bytes, on);
    std::memset(slot, 9, slot_bytes);
    recorded(on);  // the locks of later calls must not hide it
    fake.hang(0, 0);
    cu.stream_synchronize(on);
    std::exit(0);
  };
  EXPECT_EXIT(reuse_early(), testing::ExitedWithCode(exit_code_of_sanitizer), "data race");
#endif
}

}  // namespace
}  // namespace fake_cuda_test
