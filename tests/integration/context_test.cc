// The Context as a program meets it: callbacks, lifetimes, forks, errors, full disks, memory budgets.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>

#include "api/context_builder.h"
#include "integration/machine.h"
#include "support/support.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

std::uint64_t bytes_by(const Report& report, Route route) {
  return report.routes[static_cast<std::size_t>(route)];
}

std::string message_of(const Report& report) {
  return report.error ? report.error->message : "no error";
}

class ContextTest : public testing::Test {
 protected:
  static constexpr std::size_t size_bytes = 4 << 20;

  Context make_context() { return Context::create(options_).value(); }
  std::string make_file(const std::string& name, std::size_t size = size_bytes) const {
    write_file(folder_.path(name), content(1, 0, size));
    return folder_.path(name);
  }
  static Ticket submit_read(Context& context, const Store& store, Region memory, const RequestOptions& options = {}) {
    const Range range{&store, 0, memory};
    return context.submit(Direction::read, {&range, 1}, options).value();
  }

  template <typename Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 500 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    return condition();
  }

  Options options_ = [] {
    Options options;
    options.lanes = 2;
    return options;
  }();
  TemporaryFolder folder_;
};

class Callbacks : public ContextTest {};

TEST_F(Callbacks, run_once_each_on_one_thread_that_is_not_the_callers) {
  std::atomic<int> calls{0};
  std::vector<std::thread::id> threads;  // written by one thread at a time, if the promise holds
  {
    Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::vector<std::byte> memory(64 * 4096);
    RequestOptions options;
    options.on_end = [&](const Report& report) {
      EXPECT_TRUE(report.ok());
      EXPECT_EQ(report.bytes, 4096U);
      ++calls;
      threads.push_back(std::this_thread::get_id());
    };
    for (std::size_t i = 0; i < 64; ++i) {
      submit_read(context, store, Region::host(&memory[i * 4096], 4096), options).wait();
    }
  }
  EXPECT_EQ(calls, 64);
  for (const auto id : threads) {
    EXPECT_EQ(id, threads[0]);
    EXPECT_NE(id, std::this_thread::get_id());
  }
}

TEST_F(Callbacks, that_take_their_time_do_not_hold_up_requests) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  std::promise<void> go_on;
  std::promise<void> called;
  RequestOptions options;
  options.on_end = [&](const Report&) {
    called.set_value();
    go_on.get_future().wait();
  };
  submit_read(context, store, Region::host(memory.data(), memory.size()), options);
  called.get_future().wait();
  for (int i = 0; i < 8; ++i) {
    Ticket ticket = submit_read(context, store, Region::host(memory.data(), memory.size()));
    EXPECT_TRUE(ticket.wait_for(10s)) << "a lane waits for a user's callback";
  }
  go_on.set_value();
}

TEST_F(Callbacks, may_submit) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(4096);
  std::promise<Report> last;
  int left = 20;
  RequestOptions options;
  options.on_end = [&](const Report& report) {
    if (--left == 0) {
      last.set_value(report);
    } else {
      submit_read(context, store, Region::host(memory.data(), memory.size()), options);
    }
  };
  submit_read(context, store, Region::host(memory.data(), memory.size()), options);
  EXPECT_TRUE(last.get_future().get().ok());
}

TEST_F(Callbacks, can_not_wait) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  std::vector<std::byte> other(size_bytes);
  std::promise<Code> synchronous;
  std::promise<bool> returned_soon;
  RequestOptions options;
  options.on_end = [&](const Report&) {
    const Report report = context.read(store, 0, Region::host(other.data(), 4096));
    synchronous.set_value(report.error ? report.error->code : Code::ok);
    // Nothing moves without room in the file system's cache or time on the disk, so this is over before the read is.
    const Ticket ticket = submit_read(context, store, Region::host(other.data(), other.size()));
    const auto begun = std::chrono::steady_clock::now();
    ticket.wait();
    ticket.wait_for(1h);
    returned_soon.set_value(std::chrono::steady_clock::now() - begun < 10s);
  };
  submit_read(context, store, Region::host(memory.data(), memory.size()), options);
  EXPECT_EQ(synchronous.get_future().get(), Code::would_deadlock);
  EXPECT_TRUE(returned_soon.get_future().get());
}

TEST_F(Callbacks, run_where_the_executor_says) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(4096);
  std::promise<std::function<void()>> handed;
  std::thread::id ran_on;
  RequestOptions options;
  options.on_end = [&](const Report& report) {
    EXPECT_TRUE(report.ok());
    ran_on = std::this_thread::get_id();
  };
  options.executor = [&](std::function<void()> call) { handed.set_value(std::move(call)); };
  submit_read(context, store, Region::host(memory.data(), memory.size()), options);
  handed.get_future().get()();
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST_F(Callbacks, of_synchronous_requests_run_too) {
  std::atomic<int> calls{0};
  {
    Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::vector<std::byte> memory(size_bytes);
    RequestOptions options;
    options.on_end = [&](const Report&) { ++calls; };
    context.read(store, 0, Region::host(memory.data(), 100), options);
    context.read(store, 0, Region::host(memory.data(), memory.size()), options);
  }
  EXPECT_EQ(calls, 2);
}

TEST_F(Callbacks, may_destroy_their_context) {
  auto context = std::make_unique<Context>(make_context());
  const Store store = context->open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  std::promise<void> destroyed;
  std::promise<void> go;
  RequestOptions options;
  options.on_end = [&, ready = go.get_future().share()](const Report&) {
    ready.wait();
    context.reset();
    destroyed.set_value();
  };
  const Ticket ticket = submit_read(*context, store, Region::host(memory.data(), memory.size()), options);
  go.set_value();
  ASSERT_EQ(destroyed.get_future().wait_for(30s), std::future_status::ready);
  EXPECT_EQ(ticket.outcome(), Outcome::done);
}

TEST_F(Callbacks, that_go_on_submitting_do_not_keep_a_context_open) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> calls{0};
    std::vector<std::byte> memory(4096);
    RequestOptions options;
    auto context = std::make_unique<Context>(make_context());
    Context& alive = *context;
    const Store store = context->open(make_file("file", 4096)).value();
    options.on_end = [&](const Report& report) {
      ++calls;
      if (report.ok()) submit_read(alive, store, Region::host(memory.data(), memory.size()), options);
    };
    submit_read(alive, store, Region::host(memory.data(), memory.size()), options);
    while (calls < 3) std::this_thread::yield();
    context.reset();
    const int after = calls;
    std::this_thread::sleep_for(1ms);
    EXPECT_EQ(calls, after) << "a callback ran after its Context was gone";
  }
}

TEST_F(ContextTest, is_moved_with_everything_in_flight) {
  Context first = make_context();
  const Store store = first.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const Ticket ticket = submit_read(first, store, Region::host(memory.data(), memory.size()));
  Context second = std::move(first);
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(holds_content(memory, 1, 0));
  EXPECT_TRUE(second.read(store, 0, Region::host(memory.data(), 100)).ok());
  Context third = make_context();
  third = std::move(second);
  EXPECT_TRUE(third.read(store, 0, Region::host(memory.data(), 100)).ok());
}

TEST_F(ContextTest, runs_on_when_tickets_are_dropped) {
  std::atomic<int> ended{0};
  {
    Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::vector<std::byte> memory(16 * 4096);
    RequestOptions options;
    options.on_end = [&](const Report& report) { ended += report.outcome != Outcome::pending ? 1 : 1000; };
    for (std::size_t i = 0; i < 16; ++i) submit_read(context, store, Region::host(&memory[i * 4096], 4096), options);
    EXPECT_TRUE(eventually([&] { return ended == 16; }));
    EXPECT_TRUE(holds_content(std::span(memory).last(4096), 1, 0));
  }
  EXPECT_EQ(ended, 16);
}

TEST_F(ContextTest, runs_on_when_nobody_waits_or_listens) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(16 * 4096);
  for (std::size_t i = 0; i < 16; ++i) submit_read(context, store, Region::host(&memory[i * 4096], 4096));
  EXPECT_TRUE(eventually([&] { return context.statistics().requests == 16; }));
  EXPECT_EQ(context.statistics().requests_failed, 0U);
}

TEST_F(ContextTest, ends_every_request_when_it_closes_and_leaves_the_tickets_true) {
  const std::string path = folder_.path("sparse");
  write_file(path, {});
  const std::size_t size = 1 << 30;
  std::filesystem::resize_file(path, size);
  options_.cache = Cache::bypass;
  std::vector<Ticket> tickets;
  auto context = std::make_unique<Context>(make_context());
  Buffer memory = context->allocate(Domain::host(), size).value();
  {
    const Store store = context->open(path).value();
    for (std::size_t i = 0; i < 4; ++i) {
      tickets.push_back(submit_read(*context, store, memory.region().part(i * size / 4, size / 4)));
    }
  }
  context.reset();
  for (Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.ended());
    const Report report = ticket.report();
    EXPECT_TRUE(report.outcome == Outcome::done || report.error->code == Code::closed) << message_of(report);
    EXPECT_EQ(ticket.wait(), report.outcome);
    EXPECT_EQ(ticket.cancel(), report.outcome);
    EXPECT_FALSE(report.reason.empty());
  }
}

TEST_F(ContextTest, reports_what_is_known_while_a_request_runs) {
  options_.cache = Cache::bypass;
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const Ticket ticket = submit_read(context, store, Region::host(memory.data(), memory.size()));
  while (!ticket.ended()) {
    const Report report = ticket.report();
    EXPECT_LE(report.bytes, size_bytes);
    EXPECT_FALSE(report.engine.empty());
  }
  EXPECT_TRUE(ticket.report().ok());
  EXPECT_EQ(ticket.bytes_done(), size_bytes);
}

// Runs `check` in a forked child; true if it returned true there.
template <typename Check>
bool holds_in_child(Check check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class Fork : public ContextTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (under_thread_sanitizer) GTEST_SKIP() << "the thread sanitizer does not follow a fork of several threads";
    if (const auto probe = table_of(GetParam())[0]->probe(); !probe.available) GTEST_SKIP() << probe.reason;
    context_.emplace(ContextBuilder::build(table_of(GetParam()), options_).value());
    store_ = context_->open(path_).value();
    memory_ = context_->allocate(Domain::host(), size_bytes).value();
    EXPECT_TRUE(context_->read(store_, 0, memory_.region()).ok());  // the lanes have threads and rings now
  }

  const std::string path_ = make_file("file");
  std::optional<Context> context_;
  Store store_;
  Buffer memory_;
};

INSTANTIATE_TEST_SUITE_P(Engines, Fork, testing::Values("posix", "uring"),
                         [](const auto& instance) { return instance.param; });

TEST_P(Fork, gives_the_child_an_error_and_not_service) {
  EXPECT_TRUE(holds_in_child([&] {
    const Range range{&store_, 0, memory_.region()};
    const Report report = context_->read(store_, 0, memory_.region());
    const Report small = context_->read(store_, 0, memory_.region().part(0, 10));
    return report.error && report.error->code == Code::closed && small.error && small.error->code == Code::closed &&
           context_->open(path_).error().code == Code::closed &&
           context_->submit(Direction::read, {&range, 1}).error().code == Code::closed &&
           context_->prefetch({&range, 1}).error().code == Code::closed &&
           context_->allocate(Domain::host(), 10).error().code == Code::closed;
  }));
}

TEST_P(Fork, lets_the_child_make_a_context_of_its_own) {
  EXPECT_TRUE(holds_in_child([&] {
    Context own = ContextBuilder::build(table_of(GetParam()), options_).value();
    const Store store = own.open(path_).value();
    std::vector<std::byte> memory(size_bytes);
    return own.read(store, 0, Region::host(memory.data(), memory.size())).ok() && holds_content(memory, 1, 0);
  }));
}

TEST_P(Fork, leaves_the_parent_whole_when_the_child_drops_what_it_inherited) {
  options_.cache = Cache::bypass;
  options_.lanes = 1;  // one ring: the one that the child knows
  context_.emplace(ContextBuilder::build(table_of(GetParam()), options_).value());
  store_ = context_->open(path_).value();
  std::vector<std::byte> attached(size_bytes);
  const Region region = Region::host(attached.data(), attached.size());
  ASSERT_TRUE(context_->attach(region).ok());
  ASSERT_TRUE(context_->read(store_, 0, region).ok());
  Store unfinished = context_->open(folder_.path("new"), {.access = Access::replace}).value();
  ASSERT_TRUE(context_->write(unfinished, 0, region).ok());
  EXPECT_TRUE(holds_in_child([&] {
    memory_ = Buffer();
    store_ = Store();
    unfinished = Store();
    context_.reset();
    return true;
  }));
  std::fill(attached.begin(), attached.end(), std::byte{0});
  const Report report = context_->read(store_, 0, region);
  EXPECT_TRUE(report.ok()) << message_of(report);
  EXPECT_TRUE(holds_content(attached, 1, 0));
  EXPECT_TRUE(unfinished.commit().ok()) << "the child removed the parent's unfinished file";
  ASSERT_TRUE(context_->detach(region).ok());
}

class EngineVariable : public ContextTest {
 protected:
  void TearDown() override { ::unsetenv("PENSTOCK_ENGINE"); }
};

TEST_F(EngineVariable, overrides_the_options) {
  ::setenv("PENSTOCK_ENGINE", "posix", 1);
  options_.engine = "uring";
  Context context = make_context();
  EXPECT_EQ(context.options().engine, "posix");
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  EXPECT_EQ(report.engine, "posix");
  EXPECT_NE(context.explain(store).find("asked for"), std::string::npos) << context.explain(store);
}

TEST_F(EngineVariable, is_refused_when_there_is_no_such_engine) {
  ::setenv("PENSTOCK_ENGINE", "pigeon", 1);
  const auto context = Context::create();
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.error().code, Code::unknown_engine);
  EXPECT_NE(context.error().message.find("pigeon"), std::string::npos);
  ::setenv("PENSTOCK_ENGINE", "", 1);
  EXPECT_TRUE(Context::create().ok()) << "empty is unset";
}

class OpenErrors : public ContextTest {
 protected:
  Code code_of(const std::string& name, const OpenOptions& options = {}) {
    const auto store = context_.open(name, options);
    if (store) return Code::ok;
    EXPECT_FALSE(store.error().message.empty());
    EXPECT_FALSE(store.error().hint.empty()) << store.error().message;
    return store.error().code;
  }
  Context context_ = make_context();
};

TEST_F(OpenErrors, say_what_is_wrong_with_the_name) {
  EXPECT_EQ(code_of(folder_.path("missing")), Code::not_found);
  EXPECT_EQ(code_of(folder_.path("missing/file"), {.access = Access::create}), Code::not_found);
  EXPECT_EQ(code_of(folder_.path("")), Code::is_directory);
  EXPECT_EQ(code_of(folder_.path("."), {.access = Access::replace}), Code::is_directory);
  EXPECT_EQ(code_of("warp://drive/file"), Code::unknown_scheme);
  EXPECT_EQ(code_of(""), Code::invalid_argument);
  EXPECT_EQ(code_of("file:"), Code::invalid_argument);
  EXPECT_EQ(code_of(make_file("file") + std::string(1, '\0')), Code::invalid_argument);
  EXPECT_EQ(code_of("file:" + folder_.path("file%00")), Code::invalid_argument);
  EXPECT_EQ(code_of("/dev/null"), Code::unsupported);
}

TEST_F(OpenErrors, come_at_once_for_a_pipe_that_nobody_writes_to) {
  ASSERT_EQ(::mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of(folder_.path("pipe")), Code::unsupported);
}

TEST_F(OpenErrors, say_when_permission_is_missing) {
  const std::string path = make_file("secret", 10);
  std::filesystem::permissions(folder_.path(""), std::filesystem::perms(0755));
  std::filesystem::permissions(path, std::filesystem::perms::none);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const Code reading = code_of(path);
  const Code writing = code_of(path, {.access = Access::write});
  const Code making = root ? code_of(folder_.path("new"), {.access = Access::create}) : Code::permission_denied;
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_EQ(reading, Code::permission_denied);
  EXPECT_EQ(writing, Code::permission_denied);
  EXPECT_EQ(making, Code::permission_denied);
}

TEST_F(ContextTest, refuses_memory_that_no_request_can_use) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::byte byte{};
  EXPECT_EQ(context.read(store, 0, Region::host(nullptr, 10)).error->code, Code::invalid_argument);
  EXPECT_EQ(context.read(store, 0, Region{&byte, 1, Domain::cuda(0)}).error->code, Code::unsupported);
  EXPECT_EQ(context.read(Store(), 0, Region::host(&byte, 1)).error->code, Code::invalid_argument);
  EXPECT_EQ(context.allocate(Domain::cuda(0), 10).error().code, Code::unsupported);
}

TEST_F(ContextTest, prefetches_no_more_than_the_window_and_the_next_read_is_cached) {
  options_.prefetch_window_bytes = 1 << 20;
  Context context = make_context();
  const std::string path = make_file("file");
  evict(path);
  const Store store = context.open(path).value();
  if (!store.info().direct) GTEST_SKIP() << "without direct transfers, reading itself fills the page cache";
  std::vector<std::byte> memory(1 << 20);
  const Region region = Region::host(memory.data(), memory.size());
  const Range all[] = {{&store, 0, Region::host(nullptr, 512 << 10)},
                       {&store, 512 << 10, Region::host(nullptr, 3 << 20)}};
  EXPECT_EQ(context.prefetch(all).value(), 1U << 20);
  EXPECT_TRUE(eventually([&] { return bytes_by(context.read(store, 0, region), Route::cached) == memory.size(); }));
  EXPECT_EQ(bytes_by(context.read(store, 3 << 20, region), Route::direct), memory.size()) << "past the window";

  const Range beyond{&store, size_bytes, Region::host(nullptr, 1)};
  EXPECT_EQ(context.prefetch({&beyond, 1}).error().code, Code::out_of_range);
  const Range overflow{&store, UINT64_MAX, Region::host(nullptr, 2)};
  EXPECT_EQ(context.prefetch({&overflow, 1}).error().code, Code::invalid_argument);
  const Range nowhere{nullptr, 0, region};
  EXPECT_EQ(context.prefetch({&nowhere, 1}).error().code, Code::invalid_argument);
}

class Views : public ContextTest {
 protected:
  Context context_ = make_context();
};

TEST_F(Views, show_the_bytes_of_the_file) {
  const Store store = context_.open(make_file("file")).value();
  EXPECT_TRUE(store.info().mappable);
  const View view = store.view().value();
  ASSERT_EQ(view.bytes().size(), size_bytes);
  EXPECT_TRUE(holds_content(view.bytes(), 1, 0));
  std::vector<std::byte> memory(1000);
  ASSERT_TRUE(view.copy_to(12'345, Region::host(memory.data(), memory.size())).ok());
  EXPECT_TRUE(holds_content(memory, 1, 12'345));
}

TEST_F(Views, outlive_their_store_and_context) {
  View view;
  {
    Context context = make_context();
    view = context.open(make_file("file")).value().view().value();
  }
  EXPECT_TRUE(holds_content(view.bytes(), 1, 0));
}

TEST_F(Views, of_a_truncated_file_are_an_error_and_not_a_crash) {
  const std::string path = make_file("file");
  const View view = context_.open(path).value().view().value();
  std::filesystem::resize_file(path, 10'000);
  std::vector<std::byte> memory(size_bytes);
  const Status status = view.copy_to(0, Region::host(memory.data(), memory.size()));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::truncated);
  EXPECT_TRUE(view.copy_to(0, Region::host(memory.data(), 10'000)).ok());
  EXPECT_TRUE(holds_content(std::span(memory).first(10'000), 1, 0));
}

TEST_F(Views, refuse_what_they_can_not_do) {
  const Store store = context_.open(make_file("file", 100)).value();
  const View view = store.view().value();
  std::byte byte{};
  EXPECT_EQ(view.copy_to(100, Region::host(&byte, 1)).error().code, Code::out_of_range);
  EXPECT_EQ(view.copy_to(UINT64_MAX, Region::host(&byte, 1)).error().code, Code::out_of_range);
  EXPECT_EQ(view.copy_to(0, Region{&byte, 1, Domain::cuda(0)}).error().code, Code::invalid_argument);
  EXPECT_TRUE(view.copy_to(100, Region::host(nullptr, 0)).ok());
  EXPECT_TRUE(context_.open(make_file("empty", 0)).value().view().value().bytes().empty());
}

class PinnedMemory : public ContextTest {
 protected:
  PinnedMemory() {
    options_.pinned_budget_bytes = 2 << 20;
    options_.staging_slot_bytes = 256 << 10;
    options_.lanes = 1;
  }
};

TEST_F(PinnedMemory, stays_within_its_budget_and_comes_back) {
  Context context = make_context();
  auto first = context.allocate(Domain::pinned(), 1 << 20);
  if (!first && first.error().code == Code::out_of_memory) GTEST_SKIP() << first.error().message;
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(context.statistics().pinned_bytes, 1U << 20);
  const auto refused = context.allocate(Domain::pinned(), (1 << 20) + 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::over_budget);
  EXPECT_FALSE(refused.error().hint.empty());
  *first = Buffer();
  EXPECT_EQ(context.statistics().pinned_bytes, 0U);
  EXPECT_TRUE(context.allocate(Domain::pinned(), 2 << 20).ok());
}

TEST_F(PinnedMemory, that_is_spent_leaves_unaligned_reads_the_page_cache) {
  options_.cache = Cache::bypass;
  Context context = make_context();
  const auto all = context.allocate(Domain::pinned(), 2 << 20);
  if (!all && all.error().code == Code::out_of_memory) GTEST_SKIP() << all.error().message;
  const std::string path = make_file("file");
  evict(path);
  const Store store = context.open(path).value();
  std::vector<std::byte> memory(size_bytes);
  const Report report = context.read(store, 1, Region::host(memory.data() + 1, 1'000'001));
  ASSERT_TRUE(report.ok()) << message_of(report);
  EXPECT_TRUE(holds_content(std::span(memory).subspan(1, 1'000'001), 1, 1));
}

TEST_F(PinnedMemory, that_is_spent_is_an_error_where_only_the_device_is_allowed) {
  options_.allowed_routes = {Route::direct};
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  if (!store.info().direct) GTEST_SKIP() << "the temporary folder's file system has no direct I/O";
  std::vector<std::byte> memory(size_bytes);
  const Region unaligned = Region::host(memory.data() + 1, 1'000'001);
  EXPECT_EQ(bytes_by(context.read(store, 1, unaligned), Route::direct), 1'000'001U);

  Context poor = make_context();
  const auto all = poor.allocate(Domain::pinned(), 2 << 20);
  if (!all && all.error().code == Code::out_of_memory) GTEST_SKIP() << all.error().message;
  const Store other = poor.open(folder_.path("file")).value();
  const Report report = poor.read(other, 1, unaligned);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::over_budget);
}

class FullDisk : public ContextTest {
 protected:
  // Fills the file system's room with a file that is longer than the rest.
  void check(Mount& mount, std::size_t room_bytes) {
    Context context = make_context();
    const std::string path = mount.path("file");
    const std::size_t kept = 1 << 20;
    write_file(path, content(1, 0, kept));
    std::vector<std::byte> memory(room_bytes);
    {
      const Store store = context.open(path, {.access = Access::write}).value();
      const Report report = context.write(store, 100, Region::host(memory.data(), memory.size()), {.durable = true});
      ASSERT_FALSE(report.ok());
      EXPECT_EQ(report.error->code, Code::no_space) << message_of(report);
      EXPECT_FALSE(report.error->hint.empty());
      EXPECT_EQ(read_file(path).size(), kept) << "the size is as it was";
      EXPECT_TRUE(holds_content(read_file(path), 1, 0)) << "and so is the content";
      EXPECT_TRUE(context.write(store, kept, Region::host(memory.data(), 5000), {.durable = true}).ok());
    }
    const auto made = context.open(mount.path("new"), {.access = Access::create, .size_bytes = room_bytes});
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, Code::no_space);
    EXPECT_FALSE(std::filesystem::exists(mount.path("new")));
    const auto replaced = context.open(path, {.access = Access::replace, .size_bytes = room_bytes});
    ASSERT_FALSE(replaced.ok());
    EXPECT_EQ(replaced.error().code, Code::no_space);
    EXPECT_EQ(read_file(path).size(), kept + 5000);
  }
};

TEST_F(FullDisk, in_memory_loses_nothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount";
  Mount mount({"tmpfs", "tmpfs", "size=4m"}, folder_.path("mounted"));
  if (!mount.mounted()) GTEST_SKIP() << "mounting is not allowed here";
  check(mount, 6 << 20);
}

TEST_F(FullDisk, on_a_device_loses_nothing) {
  write_file(folder_.path("image"), {});
  std::filesystem::resize_file(folder_.path("image"), 16 << 20);
  const LoopDevice device(folder_.path("image"), 512);
  if (!device.refusal().empty()) GTEST_SKIP() << device.refusal();
  if (output_of("mkfs.ext4 -q -F " + device.path() + " && echo made").empty()) GTEST_SKIP() << "no mkfs.ext4 here";
  Mount mount({device.path(), "ext4", ""}, folder_.path("mounted"));
  if (!mount.mounted()) GTEST_SKIP() << "mounting is not allowed here";
  check(mount, 20 << 20);
}

TEST_F(ContextTest, syncs_durable_writes_of_several_files) {
  Context context = make_context();
  const Store stores[] = {context.open(folder_.path("a"), {.access = Access::create}).value(),
                          context.open(folder_.path("b"), {.access = Access::create}).value()};
  auto bytes = content(3, 0, 300'000);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < 6; ++i) {
    ranges.push_back({&stores[i % 2], i / 2 * 100'000, Region::host(&bytes[i / 2 * 100'000], 100'000)});
  }
  const Report report = context.transfer(Direction::write, ranges, {.durable = true});
  ASSERT_TRUE(report.ok()) << message_of(report);
  EXPECT_EQ(report.bytes, 600'000U);
  for (const char* name : {"a", "b"}) EXPECT_TRUE(holds_content(read_file(folder_.path(name)), 3, 0));
}

TEST_F(ContextTest, counts_and_forgets_while_others_work) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::atomic<bool> stop{false};
  std::thread watcher([&] {
    while (!stop) {
      const Statistics statistics = context.statistics();
      for (const RouteStatistics& route : statistics.routes) EXPECT_EQ(route.failed, 0U);
      EXPECT_EQ(statistics.requests_failed, 0U);
      context.reset_statistics();
    }
  });
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      std::vector<std::byte> memory(size_bytes);
      for (int i = 0; i < 30; ++i) {
        EXPECT_TRUE(context.read(store, 0, Region::host(memory.data(), memory.size())).ok());
        EXPECT_TRUE(context.read(store, 0, Region::host(memory.data(), 100)).ok());
      }
    });
  }
  for (auto& reader : readers) reader.join();
  stop = true;
  watcher.join();
  context.reset_statistics();
  std::vector<std::byte> memory(size_bytes);
  ASSERT_TRUE(context.read(store, 0, Region::host(memory.data(), memory.size())).ok());
  std::uint64_t bytes = 0;
  for (const RouteStatistics& route : context.statistics().routes) bytes += route.bytes;
  EXPECT_EQ(bytes, size_bytes);
}

TEST_F(ContextTest, moves_a_million_ranges_in_one_request) {
  constexpr std::size_t count = 1'000'000;
  constexpr std::size_t length = 5;
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(count * length);
  std::vector<Range> ranges(count);
  const auto offset_of = [](std::size_t i) { return i * 7919 % (size_bytes - length); };
  for (std::size_t i = 0; i < count; ++i) {
    ranges[i] = {&store, offset_of(i), Region::host(&memory[i * length], length)};
  }
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_TRUE(report.ok()) << message_of(report);
  EXPECT_EQ(report.bytes, memory.size());
  const auto file = content(1, 0, size_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(std::equal(&memory[i * length], &memory[i * length] + length, &file[offset_of(i)])) << "range " << i;
  }
}

TEST_F(ContextTest, fails_each_of_many_ranges_that_no_allowed_route_can_carry) {
  options_.allowed_routes = {Route::mapped};
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(20 * 100);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < 20; ++i) ranges.push_back({&store, i * 100, Region::host(&memory[i * 100], 100)});
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::no_route);
  EXPECT_EQ(report.failure_count, 20U);
  for (std::size_t i = 0; i < report.failures.size(); ++i) {
    EXPECT_EQ(report.failures[i].range, i);
    EXPECT_EQ(report.failures[i].offset, i * 100);
    EXPECT_EQ(report.failures[i].bytes, 100U);
  }
}

TEST_F(ContextTest, is_served_by_posix_where_io_uring_is_refused_and_says_why) {
  engine::Table table;
  table.push_back(uring::make_engine({.simulated_refusal = EPERM}));
  table.push_back(posix::make_engine());
  Context context = ContextBuilder::build(std::move(table), options_).value();
  const auto engines = context.engines();
  ASSERT_EQ(engines.size(), 2U);
  EXPECT_FALSE(engines[0].available);
  EXPECT_FALSE(engines[0].reason.empty());
  EXPECT_FALSE(engines[0].remedy.empty());
  EXPECT_TRUE(engines[1].available);
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(holds_content(memory, 1, 0));
  EXPECT_EQ(report.engine, "posix");
  EXPECT_NE(report.reason.find("uring not used: " + engines[0].reason), std::string::npos) << report.reason;
  EXPECT_NE(context.explain(store).find("uring not used"), std::string::npos) << context.explain(store);
}

}  // namespace
}  // namespace penstock::test
