// Signals whose handlers do not restart system calls, to every thread and as often as can be: nothing fails by them.
#include <dirent.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>

#include "integration/context_fixture.h"
#include "penstock/models.h"
#include "penstock/tiers.h"
#include "support/environment.h"
#include "support/support.h"

namespace penstock::test {
namespace {

namespace fs = std::filesystem;

// While it lives, each thread of the process gets a signal every 100 µs or so.
class SignalStorm {
 public:
  SignalStorm() {
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGUSR1, &action, nullptr);
    sigset_t all, mask;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &mask);
    thread_ = std::thread([this] { blow(); });
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  }
  ~SignalStorm() {
    over_ = true;
    thread_.join();
    ::signal(SIGUSR1, SIG_IGN);  // some may still be on their way
  }
  SignalStorm(const SignalStorm&) = delete;
  SignalStorm& operator=(const SignalStorm&) = delete;

 private:
  void blow() {
    const long own = ::syscall(SYS_gettid);
    while (!over_) {
      DIR* const threads = ::opendir("/proc/self/task");
      while (const dirent* entry = threads != nullptr ? ::readdir(threads) : nullptr) {
        long thread = 0;
        std::from_chars(entry->d_name, entry->d_name + std::strlen(entry->d_name), thread);
        if (thread != 0 && thread != own) ::syscall(SYS_tgkill, ::getpid(), thread, SIGUSR1);
      }
      if (threads != nullptr) ::closedir(threads);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// On each file system that there is. PENSTOCK_STORM_ROUNDS: how often each is done.
class InASignalStorm : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (under_thread_sanitizer) GTEST_SKIP() << "the thread sanitizer puts signals off";
  }
  static constexpr std::size_t size_bytes = 3 << 20;
  const int rounds_ = static_cast<int>(from_environment("PENSTOCK_STORM_ROUNDS", 3));
  TemporaryFolder folder_{GetParam()};
  Context context_ = Context::create({.lanes = 2}).value();
};

INSTANTIATE_TEST_SUITE_P(, InASignalStorm, testing::Values("/var/tmp", "/dev/shm"), [](const auto& where) {
  return std::string(where.param) == "/dev/shm" ? "in_memory" : "on_disk";
});

TEST_P(InASignalStorm, files_are_written_replaced_and_read) {
  auto bytes = content(1, 0, size_bytes);
  const Region memory = Region::host(bytes.data(), bytes.size());
  std::vector<std::byte> read(bytes.size());
  const SignalStorm storm;
  for (int round = 0; round < rounds_; ++round) {
    for (const Access access : {Access::create, Access::replace}) {
      const std::string path = folder_.path("file" + std::to_string(static_cast<int>(access)));
      // Memory of 256 MiB takes a while.
      auto store = context_.open(path, {.access = access, .size_bytes = 256 << 20});
      ASSERT_TRUE(store) << store.error().message;
      for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{100'001}}) {
        const Report report = context_.write(*store, offset, memory, {.durable = true});
        ASSERT_TRUE(report.ok()) << message_of(report);
      }
      for (const auto& report :
           {context_.zero(*store, 8 << 20, 100 << 20), context_.deallocate(*store, 8 << 20, 200 << 20)}) {
        ASSERT_TRUE(report.ok()) << message_of(report);
      }
      const Status committed = store->commit();
      ASSERT_TRUE(committed.ok()) << committed.error().message;
      const Report report = context_.read(*store, 100'001, Region::host(read.data(), read.size()));
      ASSERT_TRUE(report.ok()) << message_of(report);
      ASSERT_TRUE(same_bytes(read, bytes));
      fs::remove(path);
    }
  }
}

TEST_P(InASignalStorm, models_are_saved_packed_and_loaded) {
  std::vector<std::byte> bytes(size_bytes);
  const SignalStorm storm;
  for (int round = 0; round < rounds_; ++round) {
    const TensorToSave tensor{.name = "a",
                              .dtype = DType::bf16,
                              .shape = {size_bytes / 2},
                              .memory = Region::host(bytes.data(), bytes.size())};
    const std::string path = folder_.path("model.safetensors");
    const auto saved = save_safetensors(context_, path, {&tensor, 1}, {.checksums = true, .packed = round % 2 == 1});
    ASSERT_TRUE(saved) << saved.error().message;
    const auto model = Model::open(context_, path);
    ASSERT_TRUE(model) << model.error().message;
    const TensorPart part{.tensor = 0, .memory = Region::host(bytes.data(), bytes.size())};
    auto loading = load(context_, *model, {&part, 1});
    ASSERT_TRUE(loading) << loading.error().message;
    loading->wait();
    ASSERT_TRUE(loading->report().ok()) << message_of(loading->report().transfer);
  }
}

TEST_P(InASignalStorm, rows_and_records_are_appended_and_gathered) {
  const SignalStorm storm;
  const auto kinds = Kinds::create(context_, folder_.path("records.bin"));
  ASSERT_TRUE(kinds) << kinds.error().message;
  const auto kind = kinds->add({.name = "kind", .capacity = 1 << 20, .record_bytes = 1000});
  ASSERT_TRUE(kind) << kind.error().message;
  auto bytes = content(1, 0, 1'000'000);
  for (int round = 0; round < rounds_ * 4; ++round) {
    const auto first = kinds->append(kind->id, Region::host(bytes.data(), bytes.size()));
    ASSERT_TRUE(first) << first.error().message;
    const auto rows = kinds->rows(kind->id);
    ASSERT_TRUE(rows) << rows.error().message;
    std::vector<int> wanted(1000);
    std::iota(wanted.begin(), wanted.end(), static_cast<int>(*first));
    const auto gathered = rows->gather(wanted, Domain::host());
    ASSERT_TRUE(gathered) << gathered.error().message;
    ASSERT_TRUE(same_bytes({gathered->buffer.data(), gathered->buffer.size_bytes()}, bytes));
  }
}

TEST_P(InASignalStorm, units_move_between_tiers) {
  for (const char* tier : {"fast", "slow"}) fs::create_directory(folder_.path(tier));
  for (int i = 0; i < 40; ++i) {
    write_file(folder_.path("fast/" + std::to_string(i)), content(i, 0, i == 0 ? 10 * size_bytes : 1000 * i));
  }
  const SignalStorm storm;
  const std::vector<NewTier> both = {{.name = "fast", .path = folder_.path("fast"), .capacity_bytes = 1 << 30},
                                     {.name = "slow", .path = folder_.path("slow"), .capacity_bytes = 1 << 30}};
  auto tiers = Tiers::create(both, {.least_stay_seconds = 0}, {.catalog = folder_.path("tiers.db")});
  ASSERT_TRUE(tiers) << tiers.error().message;
  const auto imported = tiers->import_all("fast");
  ASSERT_TRUE(imported) << imported.error().message;
  for (int round = 0; round < rounds_; ++round) {
    for (const char* to : {"slow", "fast"}) {
      std::vector<PlannedMove> moves;
      for (int i = 0; i < 40; ++i) moves.push_back({.name = std::to_string(i), .to = to});
      const auto report = tiers->move(moves);
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->units, 40U);
      for (const auto& failure : report->failures) ADD_FAILURE() << failure.name << ": " << failure.error.message;
      const auto checked = tiers->check({.bytes = true});
      ASSERT_TRUE(checked) << checked.error().message;
      EXPECT_TRUE(checked->findings.empty()) << checked->findings.front().text;
    }
  }
}

}  // namespace
}  // namespace penstock::test
