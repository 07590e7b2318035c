// Reads and gathers of a file that another program writes to meanwhile: what is called done is one version of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
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

class TornReads : public ContextTest, public testing::WithParamInterface<const char*> {
 protected:
  static constexpr std::size_t size = 16 << 20;

  void SetUp() override {
    const std::filesystem::path parent(GetParam());
    if (!parent.empty() && ::access(parent.c_str(), W_OK) != 0) GTEST_SKIP() << "there is no " << parent;
    folder_of_case_.emplace(parent);
    path_ = folder_of_case_->path("data");
    write_file(path_, std::vector<std::byte>(size));
    if (context_.open(path_).value().info().file_system == "xfs") {
      GTEST_SKIP() << "xfs does not make a search for holes wait for a write";
    }
  }
  // All bytes of a version are the same.
  testing::AssertionResult is_one_version() const {
    const std::byte* const data = memory_.region().data;
    if (std::memcmp(data, data + 1, size - 1) == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "two versions";
  }

  std::optional<TemporaryFolder> folder_of_case_;
  std::string path_;
  Context context_ = make_context();
  const Buffer memory_ = context_.allocate(Domain::host(), size).value();
};

TEST_P(TornReads, are_not_called_done) {
  constexpr int rounds = 12;
  const Store store = context_.open(path_).value();
  const LongWrites writes(path_, size);
  for (int i = 0; i < rounds; ++i) {
    const Report report = context_.read(store, 0, memory_.region());
    if (!report.ok()) {
      ASSERT_EQ(report.error->code, Code::changed) << message_of(report);
      continue;
    }
    ASSERT_TRUE(is_one_version()) << "in round " << i;
  }
}

TEST_P(TornReads, are_not_called_done_if_a_table_is_opened_during_a_write) {
  constexpr std::size_t row_bytes = 4096;
  constexpr int rounds = 40;
  std::vector<std::uint64_t> numbers(size / row_bytes);
  std::iota(numbers.rbegin(), numbers.rend(), 0);
  const LongWrites writes(path_, size);
  for (int i = 0; i < rounds; ++i) {
    const Rows table = Rows::open_raw(context_, path_, {.row_bytes = row_bytes}).value();
    const RowsReport report = table.gather(numbers, memory_.region());
    if (!report.ok()) {
      ASSERT_EQ(report.error->code, Code::changed) << report.error->message;
      continue;
    }
    ASSERT_TRUE(is_one_version()) << "in round " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, TornReads, testing::Values("", "/dev/shm"),
                         [](const auto& given) { return std::string(*given.param ? "in_memory" : "on_disk"); });

}  // namespace
}  // namespace penstock::test
