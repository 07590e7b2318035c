// GPU memory where the pinned budget is short: lanes and callers that got no staging memory leave the work to others.
#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

constexpr std::size_t load_bytes = 4 * mib;
constexpr std::size_t small_bytes = 4096;

class SpentBudget : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    write_file(folder_.path("file"), content(1, 0, load_bytes));
  }

  struct Shape {
    std::uint32_t lanes;
    std::uint32_t slots;
    std::uint64_t budget_bytes;
  };
  void choose(const Shape& shape) {
    options_.lanes = shape.lanes;
    options_.staging_slots_per_lane = shape.slots;
    options_.staging_slot_bytes = mib;
    options_.pinned_budget_bytes = shape.budget_bytes;
  }

  void expect_reads(const Context& context, std::size_t bytes) {
    const Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), bytes).value();
    const Report report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
    EXPECT_LE(context.statistics().pinned_bytes, context.options().pinned_budget_bytes);
  }

  // On a ticket, which callers carry on where the engine can.
  void expect_submits(const Context& context, std::size_t bytes) {
    const Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), bytes).value();
    const Range range{&store, 0, memory.region()};
    Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
    ASSERT_EQ(ticket.wait(), Outcome::done) << ticket.report().error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
  }

  void expect_writes(const Context& context, std::size_t bytes) {
    const auto path = folder_.path("out");
    Store store = context.open(path, {.access = Access::create, .size_bytes = bytes}).value();
    const Buffer memory = context.allocate(Domain::cuda(0), bytes).value();
    fill(memory.region(), content(2, 0, bytes));
    const Report report = context.write(store, 0, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(read_file(path, 0, bytes), 2, 0));
  }

  // Nothing that the system refuses to lock is worth a test.
  static std::optional<Buffer> take_pinned(const Context& context, std::size_t bytes) {
    auto buffer = context.allocate(Domain::pinned(), bytes);
    if (buffer) return std::move(*buffer);
    EXPECT_EQ(buffer.error().code, Code::out_of_memory) << buffer.error().message;
    return std::nullopt;
  }
};

TEST_F(SpentBudget, a_small_read_leaves_a_load_its_slots_and_a_load_leaves_a_small_read_some) {
  for (const Shape& shape : {Shape{4, 3, 12 * mib}, Shape{4, 2, 8 * mib}, Shape{2, 2, 4 * mib}, Shape{1, 1, mib}}) {
    choose(shape);
    Context small_first = make_context();
    expect_reads(small_first, small_bytes);
    expect_submits(small_first, small_bytes);
    expect_reads(small_first, load_bytes);
    Context load_first = make_context();
    expect_reads(load_first, load_bytes);
    expect_reads(load_first, small_bytes);
    expect_submits(load_first, small_bytes);
  }
}

// All but the slots of one lane, or of two, is the user's: the other lanes take no part.
TEST_F(SpentBudget, lanes_without_slots_leave_the_work_to_those_that_have_some) {
  choose({.lanes = 4, .slots = 3, .budget_bytes = 24 * mib});
  for (const std::uint64_t left : {3 * mib, 7 * mib + mib / 2}) {
    Context context = make_context();
    const auto pinned = take_pinned(context, 24 * mib - left);
    if (!pinned) GTEST_SKIP() << "memory can't be locked here";
    expect_reads(context, load_bytes);
    for (int i = 0; i < 5; ++i) {
      expect_reads(context, mib);  // one part alone has to find a lane that has slots
      expect_reads(context, small_bytes);
      expect_submits(context, small_bytes);
    }
    expect_writes(context, 2 * mib + 5);
    expect_writes(context, 100);
  }
}

TEST_F(SpentBudget, the_request_fails_only_where_no_lane_has_slots_and_says_how_to_get_some) {
  choose({.lanes = 4, .slots = 3, .budget_bytes = 24 * mib});
  Context context = make_context();
  auto pinned = take_pinned(context, 24 * mib);
  if (!pinned) GTEST_SKIP() << "memory can't be locked here";
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), load_bytes).value();
  for (const std::size_t bytes : {load_bytes, mib, small_bytes}) {
    const Report report = context.read(store, 0, memory.region().part(0, bytes));
    ASSERT_EQ(report.outcome, Outcome::failed);
    EXPECT_EQ(report.error->code, Code::over_budget);
    EXPECT_NE(report.error->message.find("the budget is 25165824 bytes"), std::string::npos) << report.error->message;
    EXPECT_NE(report.error->hint.find("pinned_budget_bytes"), std::string::npos) << report.error->hint;
  }
  pinned.reset();
  expect_reads(context, load_bytes);
}

}  // namespace
}  // namespace penstock::test
