#include "penstock/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace penstock {
namespace {

constexpr std::uint64_t kib = 1 << 10;
constexpr std::uint64_t mib = 1 << 20;

template <typename Number>
Number pick(std::mt19937_64& random, Number least, Number most) {
  return std::uniform_int_distribution<Number>(least, most)(random);
}

Options random_options(std::mt19937_64& random) {
  Options options;
  const auto routes = pick<std::size_t>(random, 0, route_count);
  for (std::size_t index = 0; index < routes; ++index) {
    options.allowed_routes.push_back(static_cast<Route>(pick<std::size_t>(random, 0, route_count - 1)));
  }
  const char* engines[] = {"", "posix", "uring", "\"quoted\"\n", "größe"};
  options.engine = engines[pick<std::size_t>(random, 0, 4)];
  options.cache = static_cast<Cache>(pick(random, 0, 2));
  options.lanes = pick<std::uint32_t>(random, 0, 1024);
  options.operations_in_flight = pick<std::uint32_t>(random, 1, 4096);
  options.storage_chunk_bytes = pick<std::uint64_t>(random, 1, 262144) * 4 * kib;
  options.staging_slot_bytes = pick<std::uint64_t>(random, 1, 16384) * 64 * kib;
  options.staging_slots_per_lane = pick<std::uint32_t>(random, 1, 64);
  options.prefetch_window_bytes = pick<std::uint64_t>(random, 0, 1024 * mib);
  const std::uint64_t alignment = pick(random, 0, 3) == 0 ? 0 : std::uint64_t{512} << pick(random, 0, 11);
  options.alignment_bytes =
      std::min(alignment, std::bit_floor(options.staging_slots_per_lane * options.staging_slot_bytes));
  options.pinned_budget_bytes =
      options.staging_slots_per_lane * options.staging_slot_bytes + pick<std::uint64_t>(random, 0, 1024 * mib);
  options.nvtx = pick(random, 0, 1) == 1;
  options.trace_events = pick<std::uint32_t>(random, 0, 1 << 20);
  options.publish = pick(random, 0, 1) == 1 ? "Rank-7_a" : "";
  if (pick(random, 0, 1) == 1) options.modules = {"./a.so", "/b/c.so"};
  options.device_budget_bytes = pick<std::uint64_t>(random, 0, 1024 * mib);
  std::uniform_real_distribution<double> seconds(0, 1000);
  options.deadlines = {seconds(random), seconds(random), seconds(random) / 100 + 1e-9, seconds(random),
                       seconds(random) + 11};
  return options;
}

void expect_refused(std::string_view json, std::string_view part_of_message) {
  const auto options = Options::from_json(json);
  ASSERT_FALSE(options.ok()) << json;
  EXPECT_EQ(options.error().code, Code::invalid_argument) << json;
  EXPECT_NE(options.error().message.find(part_of_message), std::string::npos)
      << json << " gave: " << options.error().message;
}

TEST(Options, defaults_are_valid_and_an_empty_object_means_them) {
  EXPECT_TRUE(Options().validate().ok());
  EXPECT_EQ(Options::from_json("{}").value(), Options());
}

TEST(Options, closing_must_outlast_the_grace) {
  expect_refused(R"({"deadlines": {"cancel_grace_seconds": 2, "close_seconds": 2}})", "close_seconds");
}

TEST(Options, what_is_published_has_a_plain_name) {
  for (const char* name : {"../x", "a b", "a/b", "a.b", "größe"}) {
    expect_refused(std::string(R"({"publish": ")") + name + "\"}", "publish");
  }
  expect_refused(R"({"publish": ")" + std::string(65, 'a') + "\"}", "publish");
  expect_refused(R"({"publish": 1})", "publish");
  expect_refused(R"({"modules": "a.so"})", "modules");
  expect_refused(R"({"modules": [1]})", "modules");
}

TEST(Options, come_back_from_json_exactly) {
  std::mt19937_64 random(1);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const Options options = random_options(random);
    ASSERT_TRUE(options.validate().ok()) << options.validate().error().message;
    const auto back = Options::from_json(options.to_json(repeat % 2 == 0 ? -1 : 2));
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(*back, options) << options.to_json(2);
  }
}

TEST(Options, keys_are_the_names_of_the_members) {
  const auto options = Options::from_json(R"({"allowed_routes": ["direct", "cached"], "engine": "posix",
      "cache": "keep", "lanes": 3, "operations_in_flight": 7, "storage_chunk_bytes": 65536,
      "staging_slot_bytes": 131072, "staging_slots_per_lane": 4, "prefetch_window_bytes": 1, "alignment_bytes": 8192,
      "pinned_budget_bytes": 1048576, "deadlines": {"request_seconds": 1, "stall_seconds": 2.5,
      "cancel_grace_seconds": 0.25, "stream_seconds": 3, "close_seconds": 4}, "device_budget_bytes": 5,
      "nvtx": true, "trace_events": 9, "publish": "train"})");
  ASSERT_TRUE(options.ok()) << options.error().message;
  Options expected;
  expected.allowed_routes = {Route::direct, Route::cached};
  expected.engine = "posix";
  expected.cache = Cache::keep;
  expected.lanes = 3;
  expected.operations_in_flight = 7;
  expected.storage_chunk_bytes = 64 * kib;
  expected.staging_slot_bytes = 128 * kib;
  expected.staging_slots_per_lane = 4;
  expected.prefetch_window_bytes = 1;
  expected.alignment_bytes = 8192;
  expected.pinned_budget_bytes = mib;
  expected.device_budget_bytes = 5;
  expected.nvtx = true;
  expected.trace_events = 9;
  expected.publish = "train";
  expected.deadlines = {1, 2.5, 0.25, 3, 4};
  EXPECT_EQ(*options, expected);
}

TEST(Options, unknown_keys_are_refused_by_name_with_the_known_ones) {
  expect_refused(R"({"lane": 1})", "\"lane\"");
  expect_refused(R"({"deadlines": {"seconds": 1}})", "\"seconds\" in deadlines");
  expect_refused("{\"\\u0000\\n\xc3\xa9\": 1}", "\"????\"");
  const auto options = Options::from_json(R"({"lane": 1})");
  EXPECT_NE(options.error().hint.find("staging_slots_per_lane"), std::string::npos);
  EXPECT_NE(options.error().hint.find("allowed_routes"), std::string::npos);
}

TEST(Options, wrong_types_are_refused_with_the_name_of_the_key) {
  for (const char* value :
       {"-1", "1.5", "1e3", "\"1\"", "true", "null", "[]", "{}", "18446744073709551616", "4294967296"}) {
    expect_refused("{\"lanes\": " + std::string(value) + "}", "lanes");
  }
  expect_refused(R"({"engine": 1})", "engine");
  expect_refused(R"({"cache": "always"})", "cache");
  expect_refused(R"({"cache": 1})", "cache");
  expect_refused(R"({"allowed_routes": "direct"})", "allowed_routes");
  expect_refused(R"({"allowed_routes": ["teleport"]})", "\"teleport\"");
  expect_refused(R"({"allowed_routes": [1]})", "allowed_routes");
  expect_refused(R"({"deadlines": 1})", "deadlines");
  expect_refused(R"({"deadlines": {"stall_seconds": "1"}})", "stall_seconds");
}

TEST(Options, text_that_is_not_an_object_is_refused) {
  for (const char* text :
       {"", " ", "{", "{}x", "{} {}", "{\"lanes\": NaN}", "{'lanes': 1}", "{\"lanes\": 1,}", "\xff"}) {
    expect_refused(text, "not valid JSON at byte");
  }
  for (const char* text : {"1", "[]", "null", "\"x\"", "[{}]"}) expect_refused(text, "not a JSON object");
  expect_refused(R"({"deadlines": {"stall_seconds": 1e999}})", "too large");
}

TEST(Options, keys_given_twice_are_refused) {
  expect_refused(R"({"lanes": 1, "lanes": 1})", "\"lanes\" is given twice");
  expect_refused(R"({"deadlines": {"stall_seconds": 1, "stall_seconds": 2}})", "\"stall_seconds\" is given twice");
}

TEST(Options, nesting_and_size_are_bounded) {
  const std::string deep(100'000, '[');
  expect_refused(deep, "not valid JSON");
  expect_refused(deep + std::string(100'000, ']'), "nested too deeply");
  std::string objects;
  for (int level = 0; level < 10'000; ++level) objects += "{\"a\":";
  expect_refused(objects + "1" + std::string(10'000, '}'), "nested too deeply");
  expect_refused("{}" + std::string(2 * mib, ' '), "1 MiB");
}

TEST(Options, values_out_of_range_are_refused) {
  const auto refused = [](auto change) {
    Options options;
    change(options);
    return !options.validate().ok() && !Options::from_json(options.to_json()).ok();
  };
  EXPECT_TRUE(refused([](Options& o) { o.lanes = 1025; }));
  EXPECT_TRUE(refused([](Options& o) { o.operations_in_flight = 0; }));
  EXPECT_TRUE(refused([](Options& o) { o.operations_in_flight = 4097; }));
  EXPECT_TRUE(refused([](Options& o) { o.storage_chunk_bytes = 0; }));
  EXPECT_TRUE(refused([](Options& o) { o.storage_chunk_bytes = 4097; }));
  EXPECT_TRUE(refused([](Options& o) { o.storage_chunk_bytes = 2048 * mib; }));
  EXPECT_TRUE(refused([](Options& o) { o.staging_slot_bytes = 96 * kib; }));
  EXPECT_TRUE(refused([](Options& o) { o.staging_slots_per_lane = 0; }));
  EXPECT_TRUE(refused([](Options& o) { o.staging_slots_per_lane = 65; }));
  EXPECT_TRUE(refused([](Options& o) { o.alignment_bytes = 256; }));
  EXPECT_TRUE(refused([](Options& o) { o.alignment_bytes = 3 * 512; }));
  EXPECT_TRUE(refused([](Options& o) { o.alignment_bytes = 2 * mib; }));
  EXPECT_TRUE(refused([](Options& o) { o.pinned_budget_bytes = 0; }));
  EXPECT_TRUE(refused([](Options& o) { o.pinned_budget_bytes = 12 * mib - 1; }));
  EXPECT_TRUE(refused([](Options& o) { o.deadlines.request_seconds = -1; }));
  EXPECT_TRUE(refused([](Options& o) { o.deadlines.stall_seconds = std::nan(""); }));
  EXPECT_TRUE(refused([](Options& o) { o.deadlines.close_seconds = std::numeric_limits<double>::infinity(); }));
  EXPECT_TRUE(refused([](Options& o) { o.deadlines.cancel_grace_seconds = 0; }));
  EXPECT_TRUE(refused([](Options& o) { o.deadlines.cancel_grace_seconds = 11; }));
  EXPECT_TRUE(refused([](Options& o) {
    o.alignment_bytes = mib;
    o.staging_slot_bytes = 256 * kib;
  }));
  EXPECT_FALSE(refused([](Options& o) {
    o.alignment_bytes = mib;
    o.staging_slot_bytes = 384 * kib;
  }));
  EXPECT_FALSE(refused([](Options& o) { o.pinned_budget_bytes = 12 * mib; }));
  EXPECT_FALSE(refused([](Options& o) { o.alignment_bytes = mib; }));
}

Machine roomy(std::uint32_t cpus) {
  Machine machine;
  machine.usable_cpus = cpus;
  machine.memory_bytes = std::uint64_t{64} << 30;
  machine.lockable_bytes = UINT64_MAX;
  return machine;
}

std::uint64_t staging_bytes(const Options& options) {
  return std::uint64_t{options.lanes} * options.staging_slots_per_lane * options.staging_slot_bytes;
}

TEST(ResolvedOptions, use_every_cpu_up_to_sixteen) {
  EXPECT_EQ(Options().resolved(roomy(1)).lanes, 1u);
  EXPECT_EQ(Options().resolved(roomy(6)).lanes, 6u);
  EXPECT_EQ(Options().resolved(roomy(128)).lanes, 16u);
  EXPECT_EQ(Options().resolved(roomy(0)).lanes, 1u);
  Options many;
  many.lanes = 20;
  EXPECT_EQ(many.resolved(roomy(4)).lanes, 20u);
}

TEST(ResolvedOptions, change_nothing_else_on_a_roomy_machine) {
  Options expected;
  expected.lanes = 8;
  EXPECT_EQ(Options().resolved(roomy(8)), expected);
}

TEST(ResolvedOptions, stay_within_a_quarter_of_a_small_memory) {
  Machine machine = roomy(16);
  machine.memory_bytes = 64 * mib;
  const Options resolved = Options().resolved(machine);
  EXPECT_EQ(resolved.pinned_budget_bytes, 16 * mib);
  EXPECT_LE(staging_bytes(resolved), 16 * mib);
  EXPECT_EQ(resolved.lanes, 16u);
}

TEST(ResolvedOptions, leave_callers_their_share_of_the_budget) {
  constexpr std::uint64_t callers = 8 * mib;  // 16 callers that wait, and 16 lanes for tickets, 256 KiB each
  Machine machine = roomy(16);
  EXPECT_EQ(staging_bytes(Options().resolved(machine)), 192 * mib);
  for (const std::uint64_t memory : {1024 * mib, 800 * mib, 768 * mib, 400 * mib}) {
    machine.memory_bytes = memory;
    const Options resolved = Options().resolved(machine);
    EXPECT_LE(staging_bytes(resolved) + callers, resolved.pinned_budget_bytes) << memory;
    EXPECT_EQ(resolved.lanes, 16u);
  }
  Options tight;
  tight.lanes = 1;
  tight.pinned_budget_bytes = 12 * mib;
  EXPECT_LT(staging_bytes(tight.resolved(machine)), 12 * mib);
}

TEST(ResolvedOptions, shrink_slots_but_no_lanes_where_little_can_be_locked) {
  Machine machine = roomy(16);
  machine.lockable_bytes = 8 * mib;
  const Options resolved = Options().resolved(machine);
  EXPECT_EQ(resolved.lanes, 16u);
  EXPECT_EQ(resolved.staging_slot_bytes, 256 * kib);
  EXPECT_EQ(resolved.pinned_budget_bytes, Options().pinned_budget_bytes);
}

TEST(ResolvedOptions, are_valid_fit_their_budget_and_are_final) {
  std::mt19937_64 random(2);
  for (int repeat = 0; repeat < 5000; ++repeat) {
    const Options options = random_options(random);
    Machine machine = roomy(pick<std::uint32_t>(random, 0, 300));
    machine.memory_bytes = random() >> pick(random, 0, 63);
    machine.lockable_bytes = random() >> pick(random, 0, 63);
    const Options resolved = options.resolved(machine);
    ASSERT_TRUE(resolved.validate().ok()) << resolved.validate().error().message;
    EXPECT_GE(resolved.lanes, 1u);
    EXPECT_LE(staging_bytes(resolved), resolved.pinned_budget_bytes);
    EXPECT_EQ(resolved.alignment_bytes, options.alignment_bytes);
    EXPECT_LE(resolved.pinned_budget_bytes, options.pinned_budget_bytes);
    EXPECT_EQ(resolved.resolved(machine), resolved);
  }
}

}  // namespace
}  // namespace penstock
