// Requests between a file and GPU memory from a seed, over an engine that misbehaves and a driver that takes its time:
// the bytes are right, on the GPU and in the file, and nothing beside them is touched.
#include <random>

#include "engines/fault/engine.h"
#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

constexpr std::size_t file_bytes = 2 << 20;
constexpr std::size_t area_bytes = 256 << 10;
constexpr std::size_t areas = file_bytes / area_bytes;

class GpuSeeds : public GpuTest, public testing::WithParamInterface<std::uint64_t> {
 protected:
  Context make_context() {
    fault::FaultPlan plan;
    plan.seed = GetParam();
    plan.short_transfer = 100;
    plan.again = 50;
    plan.interrupted = 50;
    plan.delay = 200;
    plan.reorder = true;
    engine::Table table;
    table.push_back(fault::make_engine(posix::make_engine(), plan));
    options_.storage_chunk_bytes = 16 << 10;
    options_.staging_slot_bytes = 64 << 10;
    return ContextBuilder::build(std::move(table), options_).value();
  }

  void SetUp() override {
    GpuTest::SetUp();
    options_.lanes = 3;
  }
  std::size_t pick(std::size_t most) { return std::uniform_int_distribution<std::size_t>(0, most)(random_); }

  std::mt19937_64 random_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(From, GpuSeeds, testing::Range<std::uint64_t>(1, under_thread_sanitizer ? 3 : 5));

struct Live {
  std::size_t area = 0;
  std::size_t offset = 0;  // in the area, and in the area's memory
  std::size_t size = 0;
  Direction direction = Direction::read;
  Ticket ticket;
};

TEST_P(GpuSeeds, every_byte_is_where_it_belongs) {
  if (fake_) fake_->set_delays(GetParam(), 200);
  auto file = content(GetParam(), 0, file_bytes);
  write_file(folder_.path("file"), file);
  Context context = make_context();
  Store store = context.open(folder_.path("file"), {.access = Access::write}).value();
  const Buffer memory = context.allocate(Domain::cuda(0), file_bytes).value();
  auto device = content(GetParam() + 1000, 0, file_bytes);
  fill(memory.region(), device);
  for (int round = 0; round < 40; ++round) {
    std::vector<Live> live;
    for (std::size_t area = 0; area < areas; ++area) {
      Live one{area, pick(area_bytes - 1)};
      one.size = 1 + pick(area_bytes - one.offset - 1);
      one.direction = pick(2) == 0 ? Direction::write : Direction::read;
      const std::size_t at = area * area_bytes + one.offset;
      const Range range{&store, at, memory.region().part(at, one.size)};
      one.ticket = context.submit(one.direction, {&range, 1}).value();
      live.push_back(std::move(one));
    }
    for (const Live& one : live) {
      ASSERT_EQ(one.ticket.wait(), Outcome::done) << one.ticket.report().error->message;
      const auto from = static_cast<std::ptrdiff_t>(one.area * area_bytes + one.offset);
      const auto size = static_cast<std::ptrdiff_t>(one.size);
      if (one.direction == Direction::read) {
        std::copy_n(file.begin() + from, size, device.begin() + from);
      } else {
        std::copy_n(device.begin() + from, size, file.begin() + from);
      }
    }
  }
  EXPECT_TRUE(same_bytes(bytes_of(memory.region()), device));
  EXPECT_TRUE(same_bytes(read_file(folder_.path("file")), file));
}

// By one lane, whose long slots threads fill together.
TEST_P(GpuSeeds, long_loads_of_cached_files_are_whole) {
  if (fake_) fake_->set_delays(GetParam(), 200);
  constexpr std::size_t size = 6 << 20;
  constexpr std::size_t room = 64 << 10;
  options_.lanes = 16;
  write_file(folder_.path("file"), content(GetParam(), 0, size));
  warm(folder_.path("file"));
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), size).value();
  for (int round = 0; round < 10; ++round) {
    const std::size_t from = pick(room);
    const Region part = memory.region().part(pick(room), size - room - from);
    fill(memory.region(), std::vector<std::byte>(size));
    const Report report = context.read(store, from, part);
    ASSERT_TRUE(report.ok()) << report.error->message;
    ASSERT_TRUE(holds_content(bytes_of(part), GetParam(), from));
  }
}

}  // namespace
}  // namespace penstock::test
