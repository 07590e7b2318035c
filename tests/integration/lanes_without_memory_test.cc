// Without memory on threads of the library's own, requests end with Code::out_of_memory, or do without: no request is
// lost and no callback, lanes serve the next request, and nothing ends the process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <set>

#include "api/context_builder.h"
#include "engines/fault/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"
#include "integration/without_memory.h"
#include "penstock/models.h"
#include "support/echo.h"
#include "support/over_posix.h"
#include "support/served_engine.h"

namespace penstock::test {
namespace {

using Which = FailingAllocation::Which;

std::unique_ptr<engine::Engine> make_faulty(std::unique_ptr<engine::Engine> inner) {
  const fault::FaultPlan plan{.short_transfer = 200, .again = 100, .interrupted = 100, .delay = 100, .reorder = true};
  return fault::make_engine(std::move(inner), plan);
}

struct Through {
  const char* name;
  std::unique_ptr<engine::Engine> (*make)();
};
const Through through_posix{"posix", [] { return posix::make_engine(); }};
const Through through_uring{"uring", [] { return uring::make_engine(); }};
const Through through_faults{"faults", [] { return make_faulty(uring::make_engine()); }};

class LanesWithoutMemory : public testing::TestWithParam<std::tuple<Through, Which>> {
 protected:
  static constexpr std::size_t file_bytes = 3 << 19;

  void SetUp() override {
    const auto probe = std::get<Through>(GetParam()).make()->probe();
    if (!probe.available) GTEST_SKIP() << probe.reason;
    write_file(path_, content(1, 0, file_bytes));
  }

  virtual engine::Table make_engines() {
    engine::Table table;
    table.push_back(std::get<Through>(GetParam()).make());
    return table;
  }
  void make_context() {
    context_.emplace(ContextBuilder::build(make_engines(), options_).value());
    store_ = context_->open(path_).value();
  }

  // Each time in a Context of its own.
  void try_every_allocation(std::set<Code> with_memory, std::function<Code()> action) {
    const auto end = [&] {
      after_each();
      store_ = {};
      context_.reset();
    };
    const int refused = try_every_allocation_elsewhere({.which = std::get<Which>(GetParam()),
                                                        .with_memory = std::move(with_memory),
                                                        .before = [&] { make_context(); },
                                                        .action = std::move(action),
                                                        .after = end});
    EXPECT_TRUE(refused != 0 || !must_refuse_) << "nothing was refused";
  }
  // Its lanes go on.
  virtual void after_each() {
    std::vector<std::byte> memory(file_bytes);
    const Report report = context_->read(store_, 0, Region::host(memory.data(), memory.size()));
    EXPECT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(memory, 1, 0));
    EXPECT_EQ(context_->statistics().quarantined_bytes, 0U);
  }

  std::vector<Range> ranges_of(Region memory, std::size_t count, std::uint64_t first = 0) const {
    std::vector<Range> ranges;
    const std::size_t each = memory.size_bytes / count;
    for (std::size_t i = 0; i < count; ++i) ranges.push_back({&store_, first + i * each, memory.part(i * each, each)});
    return ranges;
  }

  Options options_{.lanes = 2, .deadlines = patient};
  TemporaryFolder folder_;
  const std::string path_ = folder_.path("file");
  std::optional<Context> context_;
  Store store_;
  bool must_refuse_ = true;
};

std::string name_of(const testing::TestParamInfo<std::tuple<Through, Which>>& info) {
  const auto& [through, which] = info.param;
  return std::string(through.name) + (which == Which::one ? "_one_fails" : "_all_fail");
}

INSTANTIATE_TEST_SUITE_P(Allocations, LanesWithoutMemory,
                         testing::Values(std::tuple(through_posix, Which::one), std::tuple(through_uring, Which::all),
                                         std::tuple(through_faults, Which::one)),
                         name_of);

TEST_P(LanesWithoutMemory, reads_end_whichever_way_they_go) {
  // Past the cache and through staging memory, since nothing is aligned; and some of it cached.
  std::vector<std::byte> memory(file_bytes - 3);
  try_every_allocation({Code::ok}, [&] {
    evict(path_);
    warm(path_, file_bytes / 3);
    const Region all = Region::host(memory.data(), memory.size());
    const Code code = carry_out(*context_, Direction::read, ranges_of(all, 3, 1));
    if (code == Code::ok) {
      EXPECT_TRUE(holds_content(memory, 1, 1));
    }
    return code;
  });
}

TEST_P(LanesWithoutMemory, batches_of_small_ranges_end) {
  std::vector<std::byte> memory(100 * 512);
  try_every_allocation({Code::ok}, [&] {
    evict(path_);
    const Code code = carry_out(*context_, Direction::read, ranges_of(Region::host(memory.data(), memory.size()), 100));
    if (code == Code::ok) {
      EXPECT_TRUE(holds_content(memory, 1, 0));
    }
    return code;
  });
}

TEST_P(LanesWithoutMemory, durable_writes_with_ragged_ends_end) {
  const std::string path = folder_.path("written");
  std::vector<std::byte> memory = content(2, 0, file_bytes / 2);
  try_every_allocation({Code::ok}, [&] {
    const Store written = context_->open(path, {.access = Access::create}).value();
    const Range range{&written, 77, Region::host(memory.data(), memory.size())};
    const Code code = carry_out(*context_, Direction::write, {&range, 1}, {.durable = true});
    if (code == Code::ok) {
      EXPECT_TRUE(holds_content(read_file(path, 77, memory.size()), 2, 0));
    }
    return code;
  });
}

TEST_P(LanesWithoutMemory, files_that_change_are_found_out) {
  std::vector<std::byte> memory(file_bytes);
  std::atomic<long> seconds{1'000'000};
  try_every_allocation({Code::changed}, [&] {
    RequestOptions options;
    // The last range is there, and the request has not ended.
    options.on_range = [&](std::uint64_t, Code) {
      const std::array times{timespec{++seconds, 0}, timespec{seconds, 0}};
      ::utimensat(AT_FDCWD, path_.c_str(), times.data(), 0);
    };
    const std::vector<Range> ranges = ranges_of(Region::host(memory.data(), memory.size()), 3);
    const Ticket ticket = context_->submit(Direction::read, ranges, options).value();
    EXPECT_TRUE(ticket.wait_for(std::chrono::seconds(20)));
    return told_by(ticket.report());
  });
}

TEST_P(LanesWithoutMemory, executors_are_given_the_end) {
  std::vector<std::byte> memory(file_bytes);
  must_refuse_ = false;
  try_every_allocation({Code::ok}, [&] {
    RequestOptions options;
    std::atomic<int> given{0};
    options.executor = [&](const std::function<void()>& call) {
      ++given;
      call();
    };
    const Code code =
        carry_out(*context_, Direction::read, ranges_of(Region::host(memory.data(), memory.size()), 1), options);
    EXPECT_EQ(given, 1);
    return code;
  });
}

TEST_P(LanesWithoutMemory, small_tickets_that_nobody_waits_for_end) {
  std::vector<std::byte> memory(4096);
  must_refuse_ = false;
  try_every_allocation({Code::ok}, [&] {
    evict(path_);
    const Range range{&store_, 1, Region::host(memory.data(), memory.size())};
    const Ticket ticket = context_->submit(Direction::read, {&range, 1}).value();
    EXPECT_TRUE(eventually([&] { return ticket.ended(); }));
    return told_by(ticket.report());
  });
}

TEST_P(LanesWithoutMemory, transforms_make_what_they_can) {
  const EchoFile file(123, {5, 4096, 100'000, 300'001, 8192});
  write_file(folder_.path("stored"), file.bytes);
  options_.staging_slot_bytes = 1 << 20;
  std::vector<std::byte> memory(file.memory_bytes());
  try_every_allocation({Code::ok}, [&] {
    const Store stored_in = context_->open(folder_.path("stored")).value();
    std::vector<Stored> stored;
    std::vector<Range> ranges;
    file.add_ranges(stored_in, std::make_shared<Echo>(), Region::host(memory.data(), memory.size()), stored, ranges);
    return carry_out(*context_, Direction::read, ranges);
  });
}

// Packed tensors, which lanes unpack; and columns of rows that are read whole, which a thread of the loading copies.
TEST_P(LanesWithoutMemory, models_are_loaded_or_not) {
  std::vector<std::byte> saved = content(3, 0, 600'000);
  for (std::size_t i = 1; i < saved.size(); i += 2) saved[i] = std::byte{0x3f};
  for (const bool is_packed : {true, false}) {
    const std::string path = folder_.path(is_packed ? "packed.safetensors" : "plain.safetensors");
    const TensorToSave tensor{
        .name = "a", .dtype = DType::bf16, .shape = {600, 500}, .memory = Region::host(saved.data(), saved.size())};
    make_context();
    ASSERT_TRUE(save_safetensors(*context_, path, {&tensor, 1}, {.durable = false, .packed = is_packed}).ok());
    const Model model = Model::open(path).value();
    ASSERT_EQ(model.tensors()[0].packing.empty(), !is_packed);
    std::vector<std::byte> memory(is_packed ? saved.size() : saved.size() / 2);
    TensorPart part{.tensor = 0, .memory = Region::host(memory.data(), memory.size())};
    if (!is_packed) {
      part.dimension = 1;
      part.intervals = {{0, 250}};
    }
    try_every_allocation({Code::ok}, [&] {
      std::atomic<Code> told{Code::internal};
      std::atomic<int> ends{0};
      LoadOptions options{.columns = is_packed ? Columns::automatic : Columns::whole};
      options.request.on_end = [&](const Report& report) {
        told = told_by(report);
        ++ends;
      };
      const auto loading = load(*context_, model, {&part, 1}, options);
      if (!loading) return loading.error().code;  // it looks into packed tensors first, by requests
      loading->wait();
      EXPECT_TRUE(eventually([&] { return ends == 1; }));
      if (told == Code::ok && is_packed) {
        EXPECT_TRUE(same_bytes(memory, saved));
      }
      return told.load();
    });
  }
}

// Every operation fails; the failures are many.
class FailingLanesWithoutMemory : public LanesWithoutMemory {
 protected:
  engine::Table make_engines() override {
    engine::Table table;
    table.push_back(fault::make_engine(std::get<Through>(GetParam()).make(), {.io_error = 1000}));
    return table;
  }
  void after_each() override {}
};

INSTANTIATE_TEST_SUITE_P(Allocations, FailingLanesWithoutMemory,
                         testing::Combine(testing::Values(through_posix, through_uring),
                                          testing::Values(Which::one, Which::all)),
                         name_of);

TEST_P(FailingLanesWithoutMemory, failures_are_told) {
  std::vector<std::byte> memory(file_bytes);
  try_every_allocation({Code::io_error}, [&] {
    return carry_out(*context_, Direction::read, ranges_of(Region::host(memory.data(), memory.size()), 3));
  });
}

// Operations never come back, until they are released.
class StuckLanesWithoutMemory : public LanesWithoutMemory {
 protected:
  engine::Table make_engines() override {
    control_ = std::make_shared<fault::FaultControl>();
    engine::Table table;
    table.push_back(fault::make_engine(std::get<Through>(GetParam()).make(), {.never = 1000}, control_));
    return table;
  }
  void SetUp() override {
    LanesWithoutMemory::SetUp();
    options_.deadlines.cancel_grace_seconds = 0.005;
    must_refuse_ = false;
  }
  void after_each() override {
    EXPECT_TRUE(eventually([&] {
      control_->release_stuck();
      return context_->statistics().quarantined_bytes == 0;
    }));
  }

  std::shared_ptr<fault::FaultControl> control_;
};

INSTANTIATE_TEST_SUITE_P(Allocations, StuckLanesWithoutMemory,
                         testing::Combine(testing::Values(through_posix, through_uring),
                                          testing::Values(Which::one, Which::all)),
                         name_of);

TEST_P(StuckLanesWithoutMemory, cancelled_requests_end) {
  const auto memory = std::make_shared<std::vector<std::byte>>(256 << 10);
  try_every_allocation({Code::abandoned, Code::cancelled}, [&] {
    const std::vector<Range> ranges = ranges_of(Region::host(memory->data(), memory->size()), 1);
    Ticket ticket = context_->submit(Direction::read, ranges).value();
    EXPECT_TRUE(eventually([&] { return control_->stuck() != 0 || ticket.ended(); }));
    ticket.cancel();
    EXPECT_TRUE(ticket.wait_for(std::chrono::seconds(20)));
    return told_by(ticket.report());
  });
}

TEST_P(StuckLanesWithoutMemory, deadlines_pass) {
  const auto memory = std::make_shared<std::vector<std::byte>>(256 << 10);
  try_every_allocation({Code::abandoned, Code::timed_out}, [&] {
    return carry_out(*context_, Direction::read, ranges_of(Region::host(memory->data(), memory->size()), 1),
                     {.deadline_seconds = 0.005});
  });
}

// An engine that breaks its contract. Nobody knows for which request it lacked memory.
class ThrowingEngine : public OverPosix {
 public:
  struct Throws {
    std::atomic<bool> submit{false};
    std::atomic<bool> poll{false};
  };
  explicit ThrowingEngine(Throws& throws) : throws_(throws) {}

  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    auto inner = OverPosix::make_queue(options);
    if (!inner) return inner;
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(std::move(*inner), throws_));
  }

 private:
  class Queue : public engine::Queue {
   public:
    Queue(std::unique_ptr<engine::Queue> inner, Throws& throws) : inner_(std::move(inner)), throws_(throws) {}
    std::size_t submit(std::span<const engine::Op> ops) override {
      if (throws_.submit.exchange(false)) throw std::bad_alloc();
      return inner_->submit(ops);
    }
    std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override {
      if (throws_.poll.exchange(false)) throw std::bad_alloc();
      return inner_->poll(done, deadline);
    }
    void wake() override { inner_->wake(); }
    void cancel(std::uint64_t cookie) override { inner_->cancel(cookie); }

   private:
    const std::unique_ptr<engine::Queue> inner_;
    Throws& throws_;
  };
  Throws& throws_;
};

TEST(LaneOfAThrowingEngine, ends_its_requests_and_goes_on) {
  const TemporaryFolder folder;
  constexpr std::size_t file_bytes = 1 << 20;
  write_file(folder.path("file"), content(1, 0, file_bytes));
  ThrowingEngine::Throws throws;
  engine::Table table;
  table.push_back(std::make_unique<ThrowingEngine>(throws));
  Context context = ContextBuilder::build(std::move(table), {.lanes = 1, .deadlines = patient}).value();
  const Store store = context.open(folder.path("file")).value();
  std::vector<std::byte> memory(file_bytes);
  const Range range{&store, 0, Region::host(memory.data(), file_bytes)};
  const auto by_lane = [&] { return carry_out(context, Direction::read, {&range, 1}); };
  const auto by_caller = [&] {
    return told_by(context.read(store, 0, range.memory.part(0, 4096), {.as_opened = true}));
  };
  for (std::atomic<bool>* const call : {&throws.submit, &throws.poll}) {
    for (const std::function<Code()>& read : {std::function<Code()>(by_lane), std::function<Code()>(by_caller)}) {
      *call = true;
      const Code code = read();
      // What was submitted before may be whole by the time the request is stopped.
      EXPECT_TRUE(code == Code::out_of_memory || (call == &throws.poll && code == Code::ok)) << code_name(code);
      std::ranges::fill(memory, std::byte{0});
      EXPECT_EQ(read(), Code::ok);
      EXPECT_TRUE(holds_content(std::span(memory).first(4096), 1, 0));
    }
  }
  EXPECT_EQ(context.statistics().quarantined_bytes, 0U);
}

// A server is asked whether the file has changed.
class ServedLanesWithoutMemory : public LanesWithoutMemory {
 protected:
  engine::Table make_engines() override {
    engine::Table table;
    table.push_back(std::make_unique<ServedEngine>(server_));
    return table;
  }

  const std::shared_ptr<Server> server_ = std::make_shared<Server>();
};

INSTANTIATE_TEST_SUITE_P(Allocations, ServedLanesWithoutMemory,
                         testing::Combine(testing::Values(through_posix), testing::Values(Which::one, Which::all)),
                         name_of);

TEST_P(ServedLanesWithoutMemory, servers_are_asked) {
  write_file(folder_.path("served"), content(1, 0, file_bytes));
  std::vector<std::byte> memory(file_bytes);
  try_every_allocation({Code::ok}, [&] {
    const auto served = context_->open(folder_.path("served"));
    if (!served) return served.error().code;  // that is asked of the server on a thread of ours, too
    const Range range{&*served, 0, Region::host(memory.data(), memory.size())};
    const auto ticket = context_->submit(Direction::read, {&range, 1});
    if (!ticket) return ticket.error().code;
    EXPECT_TRUE(ticket->wait_for(std::chrono::seconds(20)));
    return told_by(ticket->report());
  });
}

}  // namespace
}  // namespace penstock::test
