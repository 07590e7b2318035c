// That the soft controller finds a host out: each rule is broken once, by a host that drives its registers by hand.
#include "nvme/soft_controller.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "nvme/soft_test_support.h"

namespace penstock::nvme {
namespace {

TEST(SoftController, asks_for_the_time_that_a_thread_of_a_busy_machine_may_need) {
  SoftController soft(std::make_unique<RamBackend>(1 << 20), {});
  EXPECT_GE(Capabilities{soft.registers().read64(reg::cap)}.ready_timeout_ms(), 30'000U);
}

// Talks to a controller with no queue pair in between, so that it can do everything wrong.
class Host {
 public:
  explicit Host(const SoftShape& shape = {.mdts = 1}, const SoftFaults& faults = {},
                std::unique_ptr<BlockBackend> backend = std::make_unique<RamBackend>(1 << 20))
      : soft_(std::move(backend), shape, faults), registers_(soft_.registers()) {
    memory_ = DmaMemory::create(soft_, pages * 4096).value();
    registers_.write32(reg::aqa, 7U << 16 | 7);
    registers_.write64(reg::asq, at(0));
    registers_.write64(reg::acq, at(1));
    registers_.write32(reg::cc, cc::enable | cc::entry_sizes);
    until([&] { return (registers_.read32(reg::csts) & csts::ready) != 0; });
    Command create{};
    create.opcode = static_cast<std::uint8_t>(AdminOpcode::create_completion_queue);
    create.prp1 = at(2);
    create.dw10 = 7U << 16 | 1;
    create.dw11 = 1;
    admin(create);
    create.opcode = static_cast<std::uint8_t>(AdminOpcode::create_submission_queue);
    create.prp1 = at(3);
    create.dw11 = 1U << 16 | 1;
    admin(create);
  }
  ~Host() { stop(); }

  std::uint64_t at(std::uint64_t page) const { return memory_.address() + page * 4096; }
  std::byte* page(std::uint64_t number) { return memory_.data() + number * 4096; }
  Registers& registers() { return registers_; }
  SoftController& soft() { return soft_; }

  Command read(std::uint16_t cid, std::uint32_t blocks = 1) const {
    Command command{};
    command.opcode = static_cast<std::uint8_t>(IoOpcode::read);
    command.cid = cid;
    command.nsid = 1;
    command.prp1 = at(4);
    command.dw12 = blocks - 1;
    return command;
  }
  void write_entry(const Command& command) {
    std::memcpy(page(3) + tail_ % 8 * sizeof command, &command, sizeof command);
    ++tail_;
  }
  void ring() { registers_.write32(tail_doorbell(1, 4), tail_ % 8); }
  void ring_with(std::uint32_t value) { registers_.write32(tail_doorbell(1, 4), value); }
  // The status of the next completion.
  StatusField completed() {
    const auto& entry = reinterpret_cast<const Completion*>(page(2))[seen_ % 8];
    const bool phase = (seen_ / 8 & 1) == 0;
    until([&] { return Completion::phase(CpuPlatform::load_acquire(entry.status)) == phase; });
    ++seen_;
    return Completion::field(entry.status);
  }
  StatusField admin(Command command) {
    command.cid = static_cast<std::uint16_t>(100 + admin_);
    std::memcpy(page(0) + admin_ % 8 * sizeof command, &command, sizeof command);
    const auto& entry = reinterpret_cast<const Completion*>(page(1))[admin_ % 8];
    const bool phase = (admin_ / 8 & 1) == 0;
    ++admin_;
    registers_.write32(tail_doorbell(0, 4), admin_ % 8);
    until([&] { return Completion::phase(CpuPlatform::load_acquire(entry.status)) == phase; });
    return Completion::field(entry.status);
  }
  bool breached(const std::string& words) {
    return until([&] {
      for (const std::string& breach : soft_.breaches()) {
        if (breach.find(words) != std::string::npos) return true;
      }
      return false;
    });
  }
  void stop() {
    registers_.write32(reg::cc, 0);
    until([&] {
      const std::uint32_t status = registers_.read32(reg::csts);
      return status == all_ones || (status & (csts::ready | csts::fatal)) == 0;
    });
  }
  static bool until(const std::function<bool()>& holds) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  static constexpr std::size_t pages = 16;

  SoftController soft_;
  Registers registers_;
  DmaMemory memory_;
  std::uint32_t tail_ = 0;
  std::uint32_t seen_ = 0;
  std::uint32_t admin_ = 0;
};

TEST(SoftController, has_nothing_against_a_host_that_keeps_to_the_rules) {
  Host host;
  for (std::uint16_t i = 0; i < 20; ++i) {
    host.write_entry(host.read(i));
    host.ring();
    EXPECT_TRUE(host.completed().ok());
    host.registers().write32(head_doorbell(1, 4), (i + 1U) % 8);
  }
  host.stop();
  EXPECT_EQ(host.soft().breaches(), std::vector<std::string>{});
}

TEST(SoftController, finds_doorbells_that_are_wrong) {
  Host tail;
  tail.ring_with(8);
  EXPECT_TRUE(tail.breached("out of range"));
  Host early;
  early.ring_with(1);
  EXPECT_TRUE(early.breached("before it was written"));
  Host head;
  head.registers().write32(head_doorbell(1, 4), 3);
  EXPECT_TRUE(head.breached("passes what was posted"));
}

TEST(SoftController, finds_prps_that_break_the_rules) {
  struct Wrong {
    const char* words;
    std::uint32_t blocks;
    std::uint64_t prp1, prp2;  // offsets from the first page of data, which is the fourth
  };
  const Wrong wrongs[] = {
      {"PRP1", 1, 2, 0}, {"PRP2 has an offset", 16, 0, 4096 + 8}, {"not mapped", 1, 1 << 20, 0}, {"MDTS", 17, 0, 4096}};
  for (const Wrong& wrong : wrongs) {
    Host host;
    Command command = host.read(1, wrong.blocks);
    command.prp1 += wrong.prp1;
    command.prp2 = host.at(4) + wrong.prp2;
    host.write_entry(command);
    host.ring();
    EXPECT_FALSE(host.completed().ok());
    EXPECT_TRUE(host.breached(wrong.words)) << wrong.words;
  }
  // A list of two pages, the second of which has an offset; the transfer begins in the middle of a page.
  Host host;
  const std::uint64_t list[] = {host.at(5), host.at(6) + 4};
  std::memcpy(host.page(8), list, sizeof list);
  Command command = host.read(1, 16);
  command.prp1 += 2048;
  command.prp2 = host.at(8);
  host.write_entry(command);
  host.ring();
  EXPECT_EQ(host.completed(), status::invalid_prp_offset);
  EXPECT_TRUE(host.breached("an entry of a PRP list"));
}

TEST(SoftController, finds_an_identifier_that_is_used_twice) {
  Host host;
  host.write_entry(host.read(7));
  host.write_entry(host.read(7));
  host.ring();
  EXPECT_TRUE(host.breached("used twice"));
}

// The memory of its data, not that of a queue, which is in use for as long as the queue is.
TEST(SoftController, finds_memory_that_is_taken_away_too_early) {
  const auto hold = std::make_shared<Hold>();
  Host host({.mdts = 1}, {}, std::make_unique<HeldBackend>(1 << 20, hold));
  DmaMemory early = DmaMemory::create(host.soft(), 4096).value();
  DmaMemory late = DmaMemory::create(host.soft(), 4096).value();
  for (const DmaMemory* memory : {&early, &late}) {
    Command command = host.read(memory == &early ? 1 : 2);
    command.prp1 = memory->address();
    host.write_entry(command);
  }
  host.ring();
  ASSERT_TRUE(hold->wait_for(2));
  EXPECT_EQ(host.soft().breaches(), std::vector<std::string>{});
  host.soft().unmap(early.address(), early.size_bytes());
  EXPECT_TRUE(host.breached("while a command used it"));
  early.leave_behind();  // what is unmapped too early is still written to
  hold->release();
  EXPECT_TRUE(host.completed().ok());
  EXPECT_TRUE(host.completed().ok());
  late = {};
  EXPECT_EQ(host.soft().breaches().size(), 1U) << "after the completion it may be taken away";
}

TEST(SoftController, begins_nothing_more_once_it_is_gone) {
  const auto hold = std::make_shared<Hold>();
  Host host({.mdts = 1}, {.vanish_after = 3}, std::make_unique<HeldBackend>(1 << 20, hold, 1));
  for (std::uint16_t i = 0; i < 3; ++i) host.write_entry(host.read(i));
  host.ring();
  ASSERT_TRUE(hold->wait_for(1)) << "the other two wait for room";
  host.write_entry(host.read(3));
  host.ring();
  host.until([&] { return host.soft().counters().commands == 4; });
  hold->release();
  EXPECT_TRUE(host.until([&] { return host.registers().read32(reg::csts) == all_ones; }));
  EXPECT_EQ(hold->begun(), 1U);
  EXPECT_TRUE(host.soft().isolate().ok());
  EXPECT_EQ(hold->begun(), 1U);
}

TEST(SoftIommu, lets_go_of_nothing_but_what_was_used) {
  Breaches breaches;
  SoftIommu iommu(breaches);
  std::vector<std::byte> memory(8192);
  const std::uint64_t first = iommu.map(memory.data(), 4096);
  const std::uint64_t second = iommu.map(memory.data() + 4096, 4096);
  EXPECT_EQ(iommu.use(first + 100, 8), memory.data() + 100);
  EXPECT_EQ(iommu.use(first + 4090, 8), nullptr) << "beyond its end";
  EXPECT_NE(iommu.use(second, 8), nullptr);
  iommu.release(second);
  iommu.unmap(second, 4096);
  iommu.release(second);  // of what is gone: its neighbour stays in use
  EXPECT_EQ(breaches.list().size(), 0U);
  iommu.unmap(first, 4096);
  EXPECT_EQ(breaches.list().size(), 1U);
}

TEST(SoftController, finds_queues_that_are_deleted_in_the_wrong_order) {
  Host host;
  Command remove{};
  remove.opcode = static_cast<std::uint8_t>(AdminOpcode::delete_completion_queue);
  remove.dw10 = 1;
  EXPECT_FALSE(host.admin(remove).ok());
  EXPECT_TRUE(host.breached("before its submission queue"));
}

TEST(SoftController, answers_wrong_commands_with_the_status_for_them) {
  Host host;
  Command create{};
  create.opcode = static_cast<std::uint8_t>(AdminOpcode::create_submission_queue);
  create.prp1 = host.at(5);
  create.dw11 = 1U << 16 | 1;
  create.dw10 = 7U << 16 | 1;
  EXPECT_EQ(host.admin(create), status::invalid_queue) << "it is there already";
  create.dw10 = 0xffffU << 16 | 2;
  EXPECT_EQ(host.admin(create), status::invalid_queue_size);
  create.dw10 = 7U << 16 | 2;
  create.dw11 = 9U << 16 | 1;
  EXPECT_EQ(host.admin(create), status::invalid_completion_queue);
  Command unknown{};
  unknown.opcode = 0x7f;
  EXPECT_EQ(host.admin(unknown), status::invalid_opcode);
  Command past_end = host.read(1);
  past_end.dw11 = 1;  // beyond 32 bits
  host.write_entry(past_end);
  Command other_space = host.read(2);
  other_space.nsid = 2;
  host.write_entry(other_space);
  host.ring();
  EXPECT_EQ(host.completed(), status::lba_out_of_range);
  EXPECT_EQ(host.completed(), status::invalid_namespace);
}

}  // namespace
}  // namespace penstock::nvme
