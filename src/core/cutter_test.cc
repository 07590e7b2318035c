#include "core/cutter.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "core/test_scripted_engine.h"
#include "cuda/driver.h"
#include "memory/allocation.h"

namespace penstock::core {
namespace {

using engine::OpKind;
using engine::Path;

constexpr std::uint64_t cutter_kib = 1 << 10;
constexpr std::uint64_t cutter_mib = 1 << 20;

// A piece that was to be started.
struct Step {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  Path path = Path::buffered;
  Shape shape = Shape::plain;

  friend bool operator==(const Step&, const Step&) = default;
};
void PrintTo(const Step& step, std::ostream* out) {
  *out << step.offset << "+" << step.length << " path " << static_cast<int>(step.path) << " shape "
       << static_cast<int>(step.shape);
}

// A GPU in name only: nobody may ask its driver.
class NamedGpu {
 public:
  cuda::Device& device() { return device_; }

 private:
  alignas(cuda::Driver) std::array<std::byte, sizeof(cuda::Driver)> no_driver_{};
  cuda::Device device_{reinterpret_cast<cuda::Driver&>(no_driver_), 0, Gpu{.domain = Domain::cuda(0), .name = "it"}};
};

class CutterTest : public testing::Test {
 protected:
  CutterTest() {
    host_.name = "host";
    straight_.name = "straight";
    straight_.reaches_device = true;
    for (Script* script : {&host_, &straight_}) {
      script->info = {.name = "x",
                      .size_bytes = 64 * cutter_mib,
                      .alignments = {.offset = 512, .memory = 512},
                      .writable = true,
                      .direct = true,
                      .page_cache = true};
      script->size_now = script->info.size_bytes;
      script->resident_bytes = [this](std::uint64_t offset, std::uint64_t length) { return resident(offset, length); };
    }
    options_.lanes = 1;
  }
  ~CutterTest() override {
    if (request_) part().hold.reset();
  }

  // So much of the store, from its start, is in the page cache.
  std::uint64_t resident(std::uint64_t offset, std::uint64_t length) {
    ++asked_;
    return std::min(offset + length, std::max(offset, resident_bytes_)) - offset;
  }

  struct Want {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };
  // A request whose memory lies as its ranges do in the store.
  Part& ask(const std::vector<Want>& wants, OpKind kind = OpKind::read, bool has_straight = false) {
    auto table = std::make_shared<engine::Table>();
    table->push_back(std::make_unique<ScriptedEngine>(host_));
    if (has_straight) table->push_back(std::make_unique<ScriptedEngine>(straight_));
    environment_ = std::make_shared<Environment>(table, options_, Machine{.lockable_bytes = UINT64_MAX});
    cutter_ = std::make_unique<Cutter>(*environment_, 8 * cutter_mib);
    const penstock::Store store =
        client::Access::store(StoreEntry::open(*environment_, "x", {.access = Access::write}).value());
    std::vector<Range> ranges;
    for (const Want& want : wants) {
      ranges.push_back({&store, want.offset, Region::host(memory_->region().data + want.offset, want.length)});
    }
    request_ = Request::create(environment_, ranges, {.kind = kind}).value();
    part().hold = request_;
    return part();
  }
  Part& part() { return request_->parts[0]; }
  // Starts nothing and takes everything.
  std::vector<Step> cut_all() {
    std::vector<Step> steps;
    while (const auto next = cutter_->next(part())) {
      steps.push_back({next->offset, next->cut.length, part().plan.path, next->cut.shape});
      Cutter::advance(part(), next->cut.length);
    }
    return steps;
  }

  Script host_;
  Script straight_;
  Options options_;
  std::uint64_t resident_bytes_ = 0;
  int asked_ = 0;
  const std::unique_ptr<memory::Allocation> memory_ =
      memory::Allocation::create({.domain = Domain::host(), .size_bytes = 16 * cutter_mib}).value();
  std::shared_ptr<Environment> environment_;
  std::unique_ptr<Cutter> cutter_;
  std::shared_ptr<Request> request_;
};

TEST_F(CutterTest, takes_unit_after_unit_until_none_is_left) {
  ask({{0, 2 * cutter_mib + 512}});
  EXPECT_EQ(cut_all(), (std::vector<Step>{{0, cutter_mib, Path::direct},
                                          {cutter_mib, cutter_mib, Path::direct},
                                          {2 * cutter_mib, 512, Path::direct}}));
  EXPECT_FALSE(cutter_->next(part()));
  EXPECT_EQ(part().failure_count, 0U);
}

TEST_F(CutterTest, joins_units_that_follow_each_other_where_long_pieces_are_better) {
  resident_bytes_ = 16 * cutter_mib;
  ask({{0, 6 * cutter_mib}});
  ASSERT_TRUE(cutter_->next(part()));
  EXPECT_EQ(part().unit.length, cutter_mib) << "nobody knows yet";
  Cutter::advance(part(), cutter_mib);
  ASSERT_TRUE(cutter_->next(part()));
  EXPECT_EQ(part().plan.path, Path::cached);
  EXPECT_EQ(part().unit.length, 4 * cutter_mib);
  Cutter::advance(part(), 4 * cutter_mib);
  ASSERT_TRUE(cutter_->next(part()));
  EXPECT_EQ(part().unit.length, cutter_mib);
}

TEST_F(CutterTest, says_the_same_until_the_part_is_advanced) {
  ask({{0, cutter_mib}});
  for (int again = 0; again < 2; ++again) {
    const auto next = cutter_->next(part());
    ASSERT_TRUE(next);
    EXPECT_EQ(next->offset, 0U);
    EXPECT_EQ(next->cut, (Cut{cutter_mib, Shape::plain}));
  }
  Cutter::advance(part(), 4096);
  const auto next = cutter_->next(part());
  ASSERT_TRUE(next);
  EXPECT_EQ(next->offset, 4096U);
  EXPECT_EQ(next->cut, (Cut{cutter_mib - 4096, Shape::plain}));
}

TEST_F(CutterTest, goes_from_range_to_range_of_a_group_and_past_those_of_no_length) {
  ask({{0, 0}, {8192, 4096}, {4096, 0}, {65536, 512}, {0, 4096}, {512, 0}});
  ASSERT_EQ(request_->units.size(), 1U);
  std::vector<const Span*> spans;
  std::vector<std::uint64_t> offsets;
  while (const auto next = cutter_->next(part())) {
    spans.push_back(next->span);
    offsets.push_back(next->offset);
    Cutter::advance(part(), next->cut.length);
  }
  EXPECT_EQ(spans, (std::vector<const Span*>{&request_->spans[1], &request_->spans[3], &request_->spans[4]}));
  EXPECT_EQ(offsets, (std::vector<std::uint64_t>{8192, 65536, 0}));
}

TEST_F(CutterTest, has_nothing_to_do_for_ranges_of_no_length) {
  ask({{0, 0}, {512, 0}});
  EXPECT_TRUE(cut_all().empty());
}

TEST_F(CutterTest, asks_about_each_piece_of_a_unit_that_is_half_in_the_page_cache) {
  options_.storage_chunk_bytes = 256 * cutter_kib;
  resident_bytes_ = 512 * cutter_kib;
  ask({{0, cutter_mib}});
  EXPECT_EQ(cut_all(), (std::vector<Step>{{0, 256 * cutter_kib, Path::cached},
                                          {256 * cutter_kib, 256 * cutter_kib, Path::cached},
                                          {512 * cutter_kib, 256 * cutter_kib, Path::direct},
                                          {768 * cutter_kib, 256 * cutter_kib, Path::direct}}));
}

TEST_F(CutterTest, does_not_take_what_the_kernel_reads_ahead_for_cached) {
  options_.cache = Cache::keep;
  resident_bytes_ = 2 * cutter_mib;
  ask({{0, 8 * cutter_mib}});
  for (std::uint64_t done = 0; done < 8 * cutter_mib;) {
    const auto next = cutter_->next(part());
    ASSERT_TRUE(next);
    EXPECT_EQ(part().plan.path, done < 2 * cutter_mib ? Path::cached : Path::buffered) << "at " << done;
    done += next->cut.length;
    Cutter::advance(part(), next->cut.length);
    resident_bytes_ = std::max(resident_bytes_, done + 2 * cutter_mib);  // as reading it makes the kernel do
  }
  EXPECT_EQ(asked_, 8) << "once about each unit";
}

TEST_F(CutterTest, guesses_unit_by_unit_where_the_kernel_tells_only_of_pages) {
  host_.resident_bytes = nullptr;
  host_.is_resident = [](std::uint64_t offset) { return offset < 3 * cutter_mib; };
  ask({{0, 6 * cutter_mib}});
  for (const Step& step : cut_all()) {
    EXPECT_EQ(step.path, step.offset < 3 * cutter_mib ? Path::cached : Path::direct) << "at " << step.offset;
    EXPECT_LE(step.length, cutter_mib);
  }
}

TEST_F(CutterTest, asks_about_each_range_of_a_group_that_does_not_agree) {
  resident_bytes_ = cutter_mib;
  ask({{0, 4096}, {2 * cutter_mib, 4096}, {8192, 4096}});
  EXPECT_EQ(cut_all(), (std::vector<Step>{
                           {0, 4096, Path::cached}, {2 * cutter_mib, 4096, Path::direct}, {8192, 4096, Path::cached}}));
}

TEST_F(CutterTest, asks_about_a_few_ranges_of_a_group_that_agrees) {
  resident_bytes_ = 16 * cutter_mib;
  std::vector<Want> wants(128);
  for (std::size_t i = 0; i < wants.size(); ++i) wants[i] = {i * 8192, 4096};
  ask(wants);
  EXPECT_EQ(cut_all().size(), wants.size());
  EXPECT_GE(asked_, 2);
  EXPECT_LE(asked_, 10);
}

TEST_F(CutterTest, fails_what_no_allowed_route_can_carry_and_goes_on) {
  options_.allowed_routes = {Route::cached};
  resident_bytes_ = cutter_mib;
  ask({{cutter_mib, cutter_mib + 100}, {0, 4096}});
  EXPECT_EQ(cut_all(), (std::vector<Step>{{0, 4096, Path::cached}}));
  ASSERT_EQ(part().failure_count, 2U) << "one for each unit";
  EXPECT_EQ(part().failures[0].code, Code::no_route);
  EXPECT_EQ(part().failures[0].range, 0U);
  EXPECT_EQ(part().failures[0].offset, cutter_mib);
  EXPECT_EQ(part().failures[0].bytes, cutter_mib);
  EXPECT_EQ(part().failures[1].offset, 2 * cutter_mib);
  EXPECT_EQ(part().failures[1].bytes, 100U);
}

TEST_F(CutterTest, fails_what_is_left_of_a_unit_range_by_range) {
  ask({{0, 8192}, {100, 0}, {65536, 512}});
  ASSERT_TRUE(cutter_->next(part()));
  Cutter::advance(part(), 4096);
  const Error cause{Code::out_of_memory, 0, "no room for it", ""};
  Cutter::fail_unit(part(), Code::out_of_memory, &cause);
  ASSERT_EQ(part().failures.size(), 2U);
  EXPECT_EQ(part().failures[0].range, 0U);
  EXPECT_EQ(part().failures[0].offset, 4096U);
  EXPECT_EQ(part().failures[0].bytes, 4096U);
  EXPECT_EQ(part().failures[1].range, 2U);
  EXPECT_EQ(part().failures[1].bytes, 512U);
  ASSERT_TRUE(part().first_cause);
  EXPECT_EQ(part().first_cause->message, "no room for it");
  EXPECT_FALSE(cutter_->next(part()));
}

TEST_F(CutterTest, leaves_ends_of_a_write_that_fill_no_block_by_themselves) {
  ask({{100, 16384}}, OpKind::write);
  EXPECT_EQ(cut_all(), (std::vector<Step>{{100, 3996, Path::direct, Shape::edge},
                                          {4096, 12288, Path::direct},
                                          {16384, 100, Path::direct, Shape::edge}}));
}

TEST_F(CutterTest, lets_writes_through_the_page_cache_where_there_is_one_and_its_route_is_allowed) {
  ask({{0, 4096}}, OpKind::write);
  const StoreEntry& entry = *request_->stores[0].entry;
  NamedGpu gpu;
  Span span = request_->spans[0];
  EXPECT_TRUE(Cutter::may_be_buffered(*request_, entry, span));
  request_->allowed = route_bit(Route::buffered);
  EXPECT_TRUE(Cutter::may_be_buffered(*request_, entry, span));
  span.gpu = &gpu.device();
  span.is_out_of_reach = true;
  EXPECT_FALSE(Cutter::may_be_buffered(*request_, entry, span)) << "to a GPU it is another";
  request_->allowed = route_bit(Route::buffered_staged);
  EXPECT_TRUE(Cutter::may_be_buffered(*request_, entry, span));
}

TEST_F(CutterTest, goes_straight_to_a_gpu_but_for_ends_that_are_not_aligned) {
  NamedGpu gpu;
  ask({{100, 3 * cutter_mib}}, OpKind::read, true);
  request_->spans[0].gpu = &gpu.device();
  request_->spans[0].is_out_of_reach = true;
  const std::vector<Step> steps = cut_all();
  ASSERT_GE(steps.size(), 3U);
  std::uint64_t at = 100;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].offset, at);
    at += steps[i].length;
    const bool is_end = i == 0 || i + 1 == steps.size();
    EXPECT_EQ(steps[i].path, is_end ? Path::direct : Path::device) << i;
    EXPECT_EQ(steps[i].shape, is_end ? Shape::staged : Shape::plain) << i;
  }
  EXPECT_EQ(at, 100 + 3 * cutter_mib);
  EXPECT_EQ(part().failure_count, 0U);
}

TEST_F(CutterTest, goes_through_the_host_where_the_gpus_memory_is_not_aligned_anywhere) {
  NamedGpu gpu;
  ask({{0, cutter_mib}}, OpKind::read, true);
  request_->spans[0].gpu = &gpu.device();
  request_->spans[0].is_out_of_reach = true;
  request_->spans[0].memory += 512;
  for (const Step& step : cut_all()) {
    EXPECT_EQ(step.path, Path::direct);
    EXPECT_EQ(step.shape, Shape::staged);
  }
}

TEST_F(CutterTest, fails_ends_that_may_not_go_around_and_nothing_else) {
  NamedGpu gpu;
  options_.allowed_routes = {Route::gds};
  ask({{0, cutter_mib + 100}}, OpKind::read, true);
  request_->spans[0].gpu = &gpu.device();
  request_->spans[0].is_out_of_reach = true;
  std::uint64_t bytes = 0;
  for (const Step& step : cut_all()) {
    EXPECT_EQ(step.path, Path::device);
    bytes += step.length;
  }
  EXPECT_EQ(bytes, cutter_mib);
  ASSERT_EQ(part().failures.size(), 1U);
  EXPECT_EQ(part().failures[0].code, Code::no_route);
  EXPECT_EQ(part().failures[0].offset, cutter_mib);
  EXPECT_EQ(part().failures[0].bytes, 100U);
}

TEST_F(CutterTest, takes_what_is_in_the_page_cache_from_there_even_to_a_gpu) {
  NamedGpu gpu;
  resident_bytes_ = cutter_mib;
  ask({{0, cutter_mib}}, OpKind::read, true);
  request_->spans[0].gpu = &gpu.device();
  request_->spans[0].is_out_of_reach = true;
  for (const Step& step : cut_all()) {
    EXPECT_EQ(step.path, Path::cached);
    EXPECT_EQ(step.shape, Shape::staged);
  }
}

}  // namespace
}  // namespace penstock::core
