// What goes wrong around tiers, and whether what is told of it is true.
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <optional>
#include <thread>

#include "base/unique_fd.h"
#include "penstock/tiers.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/sqlite.h"
#include "services/tiers/test_tiers.h"
#include "services/tiers/unit_locks.h"

namespace penstock::tiers {
namespace {

using namespace test;

// Leaves this process so many descriptors that it may still open.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    std::vector<UniqueFd> free;
    for (std::size_t i = 0; i <= count; ++i) free.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(free.back().get());
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_ = {};
};

class FaultHook {
 public:
  explicit FaultHook(std::function<void(std::string_view)> hook) { set_fault_hook(std::move(hook)); }
  ~FaultHook() { set_fault_hook({}); }
  FaultHook(const FaultHook&) = delete;
  FaultHook& operator=(const FaultHook&) = delete;
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

class TiersFaults : public TiersTest {
 protected:
  std::string marker(const std::string& tier) const { return folders_.path(tier + "/.penstock/tier.json").string(); }
  Status change(const std::string& tier, bool adopt) {
    return tiers_.change_tier({.name = tier, .path = folders_.path(tier).string(), .adopt = adopt});
  }
  Tiers other() const {
    auto opened = Tiers::open(folders_.options());
    EXPECT_TRUE(opened.ok()) << text_of(opened);
    return opened.ok() ? *opened : Tiers();
  }
};

TEST_F(TiersFaults, a_marker_that_cannot_be_read_is_not_called_damaged) {
  std::optional<Error> problem;
  {
    const FewDescriptors none(0);
    problem = tiers_.tiers()->front().problem;
  }
  ASSERT_TRUE(problem.has_value());
  EXPECT_EQ(problem->system_error, EMFILE) << problem->message;
  EXPECT_TRUE(has(problem->hint, "ulimit")) << problem->hint;
}

TEST_F(TiersFaults, a_marker_that_is_lost_is_written_anew_when_asked_for) {
  put("nvme", "a", 1000);
  for (const std::string content : {"", "{\"tier\":", "gone"}) {
    if (content == "gone") {
      fs::remove(marker("nvme"));
    } else {
      write_file(marker("nvme"), content);
    }
    const auto problem = tiers_.tiers()->front().problem;
    ASSERT_TRUE(problem.has_value());
    EXPECT_TRUE(has(problem->hint, "penstock tier change nvme --path " + folders_.path("nvme").string() + " --adopt"))
        << problem->hint;
    EXPECT_FALSE(change("nvme", false).ok());
    EXPECT_FALSE(tiers_.move("a", "hdd").ok());
    const Status adopted = change("nvme", true);
    ASSERT_TRUE(adopted.ok()) << text_of(adopted);
    EXPECT_FALSE(tiers_.tiers()->front().problem.has_value());
  }
  EXPECT_TRUE(tiers_.move("a", "hdd").ok());
  EXPECT_EQ(text_of(*tiers_.check()), "");
}

TEST_F(TiersFaults, the_marker_of_another_tier_is_not_overwritten) {
  const std::string of_ssd = read_file(marker("ssd"));
  write_file(marker("nvme"), of_ssd);
  const Status adopted = change("nvme", true);
  ASSERT_FALSE(adopted.ok());
  EXPECT_EQ(adopted.error().code, Code::changed);
  EXPECT_EQ(read_file(marker("nvme")), of_ssd);
}

}  // namespace
}  // namespace penstock::tiers
