#include "nvme/selftest.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "nvme/pci.h"
#include "nvme/ram_backend.h"
#include "nvme/soft_controller.h"

namespace penstock::nvme {
namespace {

TEST(Selftest, passes_on_a_controller_that_works) {
  SoftController soft(std::make_unique<RamBackend>(4 << 20), {.mdts = 2, .block_bytes = 4096});
  const auto checks = run_selftest(soft);
  EXPECT_GE(checks.size(), 7U);
  for (const NvmeCheck& check : checks) EXPECT_TRUE(check.ok) << check.name << ": " << check.detail;
  EXPECT_EQ(soft.breaches(), std::vector<std::string>{});
}

TEST(Selftest, finds_bad_media_and_a_controller_that_does_not_start) {
  SoftController bad(std::make_unique<RamBackend>(1 << 20), {},
                     {.seed = 1, .fail = 1000, .statuses = {status::unrecovered_read}});
  const auto checks = run_selftest(bad);
  EXPECT_TRUE(checks.front().ok);
  EXPECT_FALSE(checks[1].ok);
  ControllerOptions options;
  options.ready_time = std::chrono::milliseconds(20);
  SoftController dead(std::make_unique<RamBackend>(1 << 20), {}, {.never_ready = true});
  EXPECT_FALSE(run_selftest(dead, options).front().ok);
}

TEST(Selftest, ends_soon_when_told_to) {
  SoftController soft(std::make_unique<RamBackend>(4 << 20), {.mdts = 2, .block_bytes = 4096});
  std::atomic<int> left = 3;
  const auto checks = run_selftest(soft, {}, [&] { return left.fetch_sub(1) > 0; });
  EXPECT_TRUE(checks.front().ok);
  EXPECT_EQ(checks[1].detail, "interrupted");
  EXPECT_LE(soft.counters().commands, 100U);
  EXPECT_EQ(soft.breaches(), std::vector<std::string>{});
}

TEST(ReadRegisters, shows_them_ready_or_as_they_were_found_with_the_reason) {
  const auto meaning_of = [](const NvmeRegisters& read, const std::string& name) {
    for (const NvmeRegister& one : read.registers) {
      if (one.name == name) return one.meaning;
    }
    return std::string("missing");
  };
  SoftController good(std::make_unique<RamBackend>(1 << 20), {});
  const NvmeRegisters ready = read_registers(good);
  EXPECT_FALSE(ready.problem);
  EXPECT_EQ(meaning_of(ready, "CSTS"), "ready");

  ControllerOptions options;
  options.ready_time = std::chrono::milliseconds(20);
  SoftController dead(std::make_unique<RamBackend>(1 << 20), {}, {.never_ready = true});
  const NvmeRegisters found = read_registers(dead, options);
  ASSERT_TRUE(found.problem);
  EXPECT_EQ(found.problem->code, Code::timed_out) << found.problem->message;
  EXPECT_EQ(meaning_of(found, "CSTS"), "not ready");
  EXPECT_NE(meaning_of(found, "CAP").find("queues of 1024 entries"), std::string::npos);
}

TEST(Trial, loses_and_duplicates_nothing) {
  for (const std::uint32_t block : {512U, 4096U}) {
    const auto report = run_trial({.seed = block, .operations = 5'000, .block_bytes = block}).value();
    EXPECT_EQ(report.operations, 5'000U);
    EXPECT_EQ(report.wrong, std::vector<std::string>{});
    EXPECT_EQ(report.breaches, std::vector<std::string>{});
    EXPECT_GT(report.retries, 0U);
    EXPECT_GT(report.strange_completions, 0U);
    EXPECT_EQ(report.resets, 1U) << "after the fatal status half-way";
  }
  EXPECT_GT(run_trial({.seed = 0, .operations = 1'000}).value().retries, 0U) << "a seed like any other";
  EXPECT_EQ(run_trial({.block_bytes = 100}).error().code, Code::invalid_argument);
}

TEST(Trial, ends_soon_when_told_to) {
  int left = 10;
  const auto report =
      run_trial({.operations = 1'000'000'000, .faults = false, .keep_going = [&] { return --left > 0; }}).value();
  EXPECT_GT(report.operations, 0U);
  EXPECT_LT(report.operations, 1'000U);
  EXPECT_EQ(report.wrong, std::vector<std::string>{});
}

TEST(PciControllers, are_found_by_their_class) {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("penstock-pci-" + std::to_string(::getpid()));
  const fs::path disk = root / "bus/pci/devices/0000:01:00.0";
  const fs::path other = root / "bus/pci/devices/0000:02:00.0";
  fs::create_directories(disk / "nvme/nvme0/nvme0n1");
  fs::create_directories(disk / "nvme/nvme0/power");
  fs::create_directories(other);
  fs::create_symlink("../../../bus/pci/drivers/nvme", disk / "driver");
  fs::create_symlink("../../../kernel/iommu_groups/7", disk / "iommu_group");
  std::ofstream(disk / "class") << "0x010802\n";
  std::ofstream(other / "class") << "0x030200\n";
  const auto found = find_pci_controllers(root).value();
  fs::remove_all(root);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].address, "0000:01:00.0");
  EXPECT_EQ(found[0].driver, "nvme");
  EXPECT_EQ(found[0].iommu_group, "7");
  EXPECT_EQ(found[0].disks, std::vector<std::string>{"nvme0n1"});
  EXPECT_TRUE(find_pci_controllers(root).value().empty());
}

}  // namespace
}  // namespace penstock::nvme
