// Reads and gathers of a file that another program writes to meanwhile: what is called done is one version of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "context_fixture.h"

namespace penstock::test {
namespace {

using Bytes = std::vector<char>;

// Writes all of a file by one call after another, each another version, and a pause in which it can be read.
class LongWrites {
 public:
  LongWrites(const std::string& path, Bytes first, std::function<void(Bytes&)> change)
      : fd_(::open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
    thread_ = std::thread([this, change = std::move(change), bytes = std::move(first)]() mutable {
      while (!stop_.load()) {
        change(bytes);
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
  LongWrites write_uniform_versions() const {
    return {path_, Bytes(size), [](Bytes& bytes) { std::memset(bytes.data(), bytes[0] + 1, bytes.size()); }};
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
  const LongWrites writes = write_uniform_versions();
  for (int i = 0; i < rounds; ++i) {
    const Report report = context_.read(store, 0, memory_.region());
    if (!report.ok()) {
      ASSERT_EQ(report.error->code, Code::changed) << message_of(report);
      continue;
    }
    ASSERT_TRUE(is_one_version()) << "in round " << i;
  }
}

// By their callers, where lanes would gain nothing.
TEST_P(TornReads, of_half_the_file_are_not_called_done) {
  constexpr int rounds = 24;
  options_.lanes = 1;
  Context context = make_context();
  const Store store = context.open(path_).value();
  const LongWrites writes = write_uniform_versions();
  for (int i = 0; i < rounds; ++i) {
    const Report report = context.read(store, size / 2, memory_.region().part(0, size / 2));
    if (!report.ok()) {
      ASSERT_EQ(report.error->code, Code::changed) << message_of(report);
      continue;
    }
    const std::byte* const data = memory_.region().data;
    ASSERT_EQ(std::memcmp(data, data + 1, size / 2 - 1), 0) << "in round " << i;
  }
}

TEST_P(TornReads, are_not_called_done_if_a_table_is_opened_during_a_write) {
  constexpr std::size_t row_bytes = 4096;
  constexpr int rounds = 40;
  std::vector<std::uint64_t> numbers(size / row_bytes);
  std::iota(numbers.rbegin(), numbers.rend(), 0);
  const LongWrites writes = write_uniform_versions();
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

// Two tensors change places. What is short is over soon, and is looked at more often.
TEST_P(TornReads, are_not_called_done_if_a_model_is_opened_during_a_write) {
  struct Case {
    std::size_t tensor_bytes;
    int rounds;
  };
  for (const auto& [tensor_bytes, rounds] : {Case{4096, 300}, Case{2 << 20, 100}}) {
    const std::string end = std::to_string(2 * tensor_bytes), middle = std::to_string(tensor_bytes);
    const auto model_of = [&](const std::string& first, const std::string& second) {
      const auto tensor = [&](const std::string& name, const std::string& offsets) {
        return "\"" + name + R"(":{"dtype":"U8","shape":[)" + middle + R"(],"data_offsets":[)" + offsets + "]}";
      };
      const std::string header = "{" + tensor(first, "0," + middle) + "," + tensor(second, middle + "," + end) + "}";
      Bytes bytes(8 + header.size() + 2 * tensor_bytes, first[0]);
      const std::uint64_t length = header.size();
      std::memcpy(bytes.data(), &length, sizeof(length));
      std::memcpy(bytes.data() + sizeof(length), header.data(), header.size());
      std::memset(bytes.data() + 8 + header.size() + tensor_bytes, second[0], tensor_bytes);
      return bytes;
    };
    const Bytes one = model_of("a", "b"), other = model_of("b", "a");
    write_file(path_, std::as_bytes(std::span(one)));
    const LongWrites writes(path_, one, [&](Bytes& bytes) { bytes = bytes == one ? other : one; });
    for (int i = 0; i < rounds; ++i) {
      const auto model = Model::open(path_);
      if (!model) continue;
      const Region place = memory_.region().part(0, tensor_bytes);
      const TensorPart part{.tensor = *model->find("a"), .memory = place};
      auto loading = load(context_, *model, {&part, 1});
      if (loading) loading->wait();
      const auto error = loading ? loading->report().transfer.error : std::optional(loading.error());
      if (error) {
        ASSERT_EQ(error->code, Code::changed) << error->message;
        continue;
      }
      ASSERT_EQ(place.data[0], std::byte{'a'}) << "in round " << i << " of " << tensor_bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, TornReads, testing::Values("", "/dev/shm"),
                         [](const auto& given) { return std::string(*given.param ? "in_memory" : "on_disk"); });

}  // namespace
}  // namespace penstock::test
