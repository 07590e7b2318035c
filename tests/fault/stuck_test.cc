// Operations that never come back: the request is abandoned in time, its memory is kept from reuse, and the Context
// goes on working.
#include <gtest/gtest.h>

#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "api/context_builder.h"
#include "engines/fault/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"
#include "penstock/kinds.h"
#include "support/support.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

using MakeEngine = std::unique_ptr<engine::Engine> (*)();

struct InnerEngine {
  const char* name;
  MakeEngine make;
};

class Stuck : public testing::TestWithParam<InnerEngine> {
 protected:
  explicit Stuck(std::uint32_t never = 1000) {
    options_.lanes = 2;
    options_.deadlines.cancel_grace_seconds = 0.05;
    options_.deadlines.close_seconds = 0.2;
    plan_.never = never;
    write_file(folder_.path("file"), content(1, 0, 1 << 20));
  }

  void SetUp() override {
    const auto probe = GetParam().make()->probe();
    if (!probe.available) GTEST_SKIP() << probe.reason;
  }

  Context make_context() {
    engine::Table table;
    table.push_back(fault::make_engine(GetParam().make(), plan_, control_));
    return ContextBuilder::build(std::move(table), options_).value();
  }

  // The byte that is mapped there now, if any: someone else's, perhaps, once the memory was given back.
  static std::optional<std::byte> peek(const std::byte* address) {
    std::byte found{};
    iovec here{&found, 1};
    iovec there{const_cast<std::byte*>(address), 1};
    return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1 ? std::optional(found) : std::nullopt;
  }

  Options options_;
  fault::FaultPlan plan_;
  std::shared_ptr<fault::FaultControl> control_ = std::make_shared<fault::FaultControl>();
  TemporaryFolder folder_;
};

const InnerEngine inner_engines[] = {{"posix", [] { return posix::make_engine(); }},
                                     {"uring", [] { return uring::make_engine(); }}};
const auto name_of = [](const auto& instance) { return std::string(instance.param.name); };
INSTANTIATE_TEST_SUITE_P(Over, Stuck, testing::ValuesIn(inner_engines), name_of);

TEST_P(Stuck, a_request_past_its_deadline_is_abandoned_and_its_memory_quarantined) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  Buffer memory = context.allocate(Domain::host(), 8192).value();
  constexpr std::byte mark{0xa5};
  std::fill_n(memory.data(), memory.size_bytes(), mark);
  const Report report = past_deadline([&](double seconds) {
    return context.read(store, 0, memory.region().part(0, 4096), {.deadline_seconds = seconds});
  });
  EXPECT_EQ(report.outcome, Outcome::abandoned);
  EXPECT_EQ(report.error->code, Code::abandoned);
  EXPECT_EQ(context.statistics().quarantined_bytes, 4096U);
  EXPECT_EQ(context.statistics().lanes_replaced, 1U);

  // The Buffer goes, its pages stay: the late device must not write into memory that is somebody else's by now.
  std::byte* const address = memory.data() + 4096;
  memory = Buffer();
  EXPECT_EQ(peek(address), mark) << "the pages were given back while the device may write";
  control_->release_stuck();
  EXPECT_TRUE(eventually([&] { return context.statistics().quarantined_bytes == 0; }));
  EXPECT_TRUE(eventually([&] { return peek(address) != mark; })) << "and are given back after";
}

TEST_P(Stuck, a_file_to_which_an_abandoned_write_may_still_come_replaces_nothing) {
  plan_.never = 0;
  Context context = make_context();
  const std::string name = folder_.path("replaced");
  write_file(name, content(1, 0, 1000));
  Store store = context.open(name, {.access = Access::replace}).value();
  std::vector<std::byte> bytes = content(2, 0, 1 << 20);
  const Region memory = Region::host(bytes.data(), bytes.size());
  control_->hang_writes(true);
  const Report report =
      past_deadline([&](double seconds) { return context.write(store, 0, memory, {.deadline_seconds = seconds}); });
  EXPECT_EQ(report.outcome, Outcome::abandoned);
  control_->hang_writes(false);
  EXPECT_TRUE(context.write(store, 0, memory).ok());
  const Status refused = store.commit();
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("may still land"), std::string::npos) << refused.error().message;
  control_->release_stuck();
  EXPECT_TRUE(holds_content(read_file(name), 1, 0));
}

TEST_P(Stuck, records_of_an_append_that_was_abandoned_do_not_land_on_others) {
  plan_.never = 0;
  Context context = make_context();
  constexpr std::uint64_t record_bytes = 1 << 20;
  const KindsOptions impatient{.writing = {}, .lock_seconds = 0.05};
  const Kinds kinds = Kinds::create(context, folder_.path("records"), impatient).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 4, .record_bytes = record_bytes}).value();
  std::vector<std::byte> lost(record_bytes, std::byte{1});
  std::vector<std::byte> kept(record_bytes, std::byte{2});
  const RecordsAppend first[] = {{kind.id, Region::host(lost.data(), lost.size())}};

  control_->hang_writes(true);
  EXPECT_EQ(kinds.append(first, [] { return false; }).error().code, Code::abandoned);
  control_->hang_writes(false);
  ASSERT_GE(control_->stuck(), 1U);
  EXPECT_EQ(kinds.append(kind.id, Region::host(kept.data(), kept.size())).error().code, Code::in_use);
  const pid_t child = under_thread_sanitizer ? 0 : ::fork();  // which has all that is open, and lives on
  if (child == 0 && !under_thread_sanitizer) {
    ::pause();
    ::_exit(0);
  }
  control_->release_stuck();
  ASSERT_TRUE(eventually([&] { return kinds.append(kind.id, Region::host(kept.data(), kept.size())).ok(); }));
  if (child > 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  const auto read = kinds.read({kind.id, 0}, Domain::host());
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), read->buffer.data()));
}

TEST_P(Stuck, a_buffer_that_is_destroyed_in_flight_stays_until_its_request_has_ended) {
  Context context = make_context();
  Context another = make_context();
  Store store = context.open(folder_.path("file")).value();
  constexpr std::byte mark{0xa5};
  for (Context* owner : {&context, &another}) {
    Buffer memory = owner->allocate(Domain::host(), 8192).value();
    std::fill_n(memory.data(), memory.size_bytes(), mark);
    const Range range{&store, 0, memory.region().part(0, 4096)};
    Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
    ASSERT_TRUE(eventually([&] { return control_->stuck() == 1; }));
    std::byte* const address = memory.data() + 4096;
    Buffer moved = std::move(memory);
    moved = Buffer();
    EXPECT_EQ(peek(address), mark) << "the pages were given back while the request runs";
    control_->release_stuck();
    EXPECT_EQ(ticket.wait(), Outcome::done);
    EXPECT_NE(peek(address), mark) << "the ticket alone keeps no memory";
  }
}

TEST_P(Stuck, a_buffer_outlives_its_context_as_long_as_an_operation_may_touch_it) {
  std::byte* address = nullptr;
  constexpr std::byte mark{0xa5};
  {
    Buffer memory;
    Context context = make_context();
    Store store = context.open(folder_.path("file")).value();
    memory = context.allocate(Domain::host(), 8192).value();
    std::fill_n(memory.data(), memory.size_bytes(), mark);
    address = memory.data() + 4096;
    const Range range{&store, 0, memory.region().part(0, 4096)};
    ASSERT_TRUE(context.submit(Direction::read, {&range, 1}).ok());
    ASSERT_TRUE(eventually([&] { return control_->stuck() == 1; }));
  }
  EXPECT_EQ(peek(address), mark);
  control_->release_stuck();
  EXPECT_TRUE(eventually([&] { return peek(address) != mark; }));
}

TEST_P(Stuck, a_pinned_buffer_that_is_destroyed_in_flight_counts_until_its_request_has_ended) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  auto memory = context.allocate(Domain::pinned(), 4096);
  if (!memory && memory.error().code == Code::out_of_memory) GTEST_SKIP() << memory.error().message;
  const std::uint64_t pinned = context.statistics().pinned_bytes;
  const Range range{&store, 0, memory->region()};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  ASSERT_TRUE(eventually([&] { return control_->stuck() == 1; }));
  *memory = Buffer();
  EXPECT_EQ(context.statistics().pinned_bytes, pinned);
  control_->release_stuck();
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(eventually([&] { return context.statistics().pinned_bytes == pinned - 4096; }));
}

TEST_P(Stuck, zeroing_past_its_deadline_is_abandoned_and_has_no_memory_to_keep) {
  Context context = make_context();
  Store store = context.open(folder_.path("file"), {.access = Access::write}).value();
  const Report report =
      past_deadline([&](double seconds) { return context.zero(store, 4096, 8192, {.deadline_seconds = seconds}); });
  EXPECT_EQ(report.outcome, Outcome::abandoned);
  EXPECT_EQ(context.statistics().quarantined_bytes, 0U);
  EXPECT_TRUE(holds_content(read_file(folder_.path("file")), 1, 0));
  control_->release_stuck();
  const auto late = read_file(folder_.path("file"));
  EXPECT_EQ(late[4096], std::byte{0}) << "the late device did it after all";
  EXPECT_TRUE(holds_content(std::span(late).subspan(12'288), 1, 12'288));
}

TEST_P(Stuck, cancelling_returns_in_time_with_the_truth) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  std::vector<std::byte> memory(4096);
  const Range range{&store, 0, Region::host(memory.data(), memory.size())};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  ASSERT_TRUE(eventually([&] { return control_->stuck() == 1; }));
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(ticket.cancel(), Outcome::abandoned);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  EXPECT_EQ(ticket.report().error->code, Code::abandoned);
  control_->release_stuck();
  EXPECT_TRUE(eventually([&] { return context.statistics().quarantined_bytes == 0; }));
  EXPECT_TRUE(holds_content(memory, 1, 0)) << "the late transfer did happen";
}

TEST_P(Stuck, a_request_in_which_nothing_moves_ends_by_itself) {
  options_.deadlines.stall_seconds = 0.2;
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  Buffer memory = context.allocate(Domain::host(), 4096).value();
  const Range range{&store, 0, memory.region()};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(ticket.wait(), Outcome::abandoned);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  control_->release_stuck();
}

TEST_P(Stuck, a_deadline_of_a_wait_ends_the_wait_and_nothing_else) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  std::vector<std::byte> memory(4096);
  const Range range{&store, 0, Region::host(memory.data(), memory.size())};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  EXPECT_FALSE(ticket.wait_for(20ms));
  EXPECT_EQ(ticket.outcome(), Outcome::pending);
  ASSERT_TRUE(eventually([&] { return control_->stuck() == 1; }));
  control_->release_stuck();
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(holds_content(memory, 1, 0));
}

TEST_P(Stuck, lanes_are_replaced_a_bounded_number_of_times_and_come_home) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  std::vector<Buffer> memory;
  for (int i = 0; i < 6; ++i) {
    memory.push_back(context.allocate(Domain::host(), 4096).value());
    const Report report = past_deadline(
        [&](double seconds) { return context.read(store, 0, memory.back().region(), {.deadline_seconds = seconds}); });
    EXPECT_EQ(report.outcome, Outcome::abandoned);
  }
  EXPECT_EQ(context.statistics().lanes_replaced, 2U) << "no more than there are lanes";
  control_->release_stuck();
  EXPECT_TRUE(eventually([&] { return context.statistics().quarantined_bytes == 0; }));
}

TEST_P(Stuck, closing_ends_every_request_and_leaks_what_is_stuck_in_bounded_time) {
  std::vector<std::byte> memory(4096);
  Ticket ticket;
  const auto begun = std::chrono::steady_clock::now();
  {
    Context context = make_context();
    Store store = context.open(folder_.path("file")).value();
    const Range range{&store, 0, Region::host(memory.data(), memory.size())};
    ticket = context.submit(Direction::read, {&range, 1}).value();
    ASSERT_TRUE(eventually([&] { return control_->stuck() == 1; }));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  ASSERT_TRUE(ticket.wait_for(10s)) << "a busy machine may not have come to it by the end of close_seconds";
  EXPECT_EQ(ticket.outcome(), Outcome::abandoned);
  // The lane outlived its Context: it still takes what comes home late.
  control_->release_stuck();
  EXPECT_TRUE(eventually([&] { return holds_content(memory, 1, 0); }));
  ticket = Ticket();
  EXPECT_TRUE(eventually([&] { return control_.use_count() == 1; })) << "and goes when nothing is left";
}

class SometimesStuck : public Stuck {
 protected:
  SometimesStuck() : Stuck(100) {}
};

INSTANTIATE_TEST_SUITE_P(Over, SometimesStuck, testing::ValuesIn(inner_engines), name_of);

TEST_P(SometimesStuck, other_requests_are_served_by_the_lanes_that_take_over) {
  Context context = make_context();
  Store store = context.open(folder_.path("file")).value();
  int done = 0;
  std::vector<Buffer> kept;
  for (int i = 0; i < 100; ++i) {
    Buffer memory = context.allocate(Domain::host(), 4096).value();
    const std::uint64_t offset = static_cast<std::uint64_t>(i) * 4096;
    const Report report = past_deadline(
        [&](double seconds) { return context.read(store, offset, memory.region(), {.deadline_seconds = seconds}); });
    if (report.ok()) {
      ++done;
      EXPECT_TRUE(holds_content(memory.bytes(), 1, offset));
    } else {
      EXPECT_EQ(report.outcome, Outcome::abandoned);
      kept.push_back(std::move(memory));
    }
  }
  EXPECT_GT(done, 50);
  EXPECT_GT(kept.size(), 0U);
  control_->release_stuck();
  EXPECT_TRUE(eventually([&] { return context.statistics().quarantined_bytes == 0; }));
}

}  // namespace
}  // namespace penstock::test
