// Reads and gathers of a file that another program writes to meanwhile: what is called done is one version of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "context_fixture.h"

namespace penstock::test {
namespace {

// Writes all of a file by one call after another, each with another byte, and a pause in which it can be read.
class LongWrites {
 public:
  LongWrites(const std::string& path, std::size_t size) : fd_(::open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
    thread_ = std::thread([this, bytes = std::vector<char>(size)]() mutable {
      while (!stop_.load()) {
        std::memset(bytes.data(), bytes[0] + 1, bytes.size());
        if (::pwrite(fd_.get(), bytes.data(), bytes.size(), 0) < 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
    });
  }
  ~LongWrites() {
    stop_.store(true);
    thread_.join();
  }

 private:
  const UniqueFd fd_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class TornReads : public ContextTest, public testing::WithParamInterface<const char*> {};

TEST_P(TornReads, are_not_called_done) {
  constexpr std::size_t size = 16 << 20;
  constexpr int rounds = 12;
  const std::filesystem::path parent(GetParam());
  if (!parent.empty() && ::access(parent.c_str(), W_OK) != 0) GTEST_SKIP() << "there is no " << parent;
  const TemporaryFolder folder(parent);
  const std::string path = folder.path("data");
  write_file(path, std::vector<std::byte>(size));
  Context context = make_context();
  const Store store = context.open(path).value();
  if (store.info().file_system == "xfs") GTEST_SKIP() << "xfs does not make a search for holes wait for a write";
  const Buffer memory = context.allocate(Domain::host(), size).value();
  const LongWrites writes(path, size);
  for (int i = 0; i < rounds; ++i) {
    const Report report = context.read(store, 0, memory.region());
    if (!report.ok()) {
      ASSERT_EQ(report.error->code, Code::changed) << message_of(report);
      continue;
    }
    const std::byte* const data = memory.region().data;
    ASSERT_EQ(std::memcmp(data, data + 1, size - 1), 0) << "two versions in round " << i;
  }
}

TEST_P(TornReads, are_not_called_done_if_a_table_is_opened_during_a_write) {
  constexpr std::size_t size = 16 << 20;
  constexpr std::size_t row_bytes = 4096;
  constexpr int rounds = 40;
  const std::filesystem::path parent(GetParam());
  if (!parent.empty() && ::access(parent.c_str(), W_OK) != 0) GTEST_SKIP() << "there is no " << parent;
  const TemporaryFolder folder(parent);
  const std::string path = folder.path("data");
  write_file(path, std::vector<std::byte>(size));
  Context context = make_context();
  if (context.open(path).value().info().file_system == "xfs") {
    GTEST_SKIP() << "xfs does not make a search for holes wait for a write";
  }
  const Buffer memory = context.allocate(Domain::host(), size).value();
  std::vector<std::uint64_t> numbers(size / row_bytes);
  std::iota(numbers.rbegin(), numbers.rend(), 0);
  const LongWrites writes(path, size);
  for (int i = 0; i < rounds; ++i) {
    const Rows table = Rows::open_raw(context, path, {.row_bytes = row_bytes}).value();
    const RowsReport report = table.gather(numbers, memory.region());
    if (!report.ok()) {
      ASSERT_EQ(report.error->code, Code::changed) << report.error->message;
      continue;
    }
    const std::byte* const data = memory.region().data;
    ASSERT_EQ(std::memcmp(data, data + 1, size - 1), 0) << "two versions in round " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, TornReads, testing::Values("", "/dev/shm"),
                         [](const auto& given) { return std::string(*given.param ? "in_memory" : "on_disk"); });

}  // namespace
}  // namespace penstock::test
