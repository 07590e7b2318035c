#include "nvme/selftest.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "nvme/errors.h"
#include "nvme/io_queue.h"
#include "nvme/ram_backend.h"
#include "nvme/soft_controller.h"

namespace penstock::nvme {
namespace {

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%#llx", 0ULL + value);
  return text.data();
}

std::string version_text(std::uint32_t version) {
  return std::to_string(version >> 16) + "." + std::to_string(version >> 8 & 0xff);
}

std::vector<NvmeRegister> registers_of(Transport& transport) {
  const Registers registers = transport.registers();
  const Capabilities cap{registers.read64(reg::cap)};
  const std::uint32_t csts = registers.read32(reg::csts);
  const std::uint32_t cc = registers.read32(reg::cc);
  const std::uint32_t aqa = registers.read32(reg::aqa);
  return {
      {"CAP", reg::cap, cap.bits,
       "queues of " + std::to_string(cap.max_queue_entries()) + " entries" +
           (cap.contiguous_queues() ? ", contiguous" : "") + ", doorbells " +
           std::to_string(cap.doorbell_stride_bytes()) + " bytes apart, ready within " +
           std::to_string(cap.ready_timeout_ms()) + " ms, pages of " + std::to_string(cap.min_page_bytes()) + " to " +
           std::to_string(cap.max_page_bytes()) + " bytes"},
      {"VS", reg::vs, registers.read32(reg::vs), "version " + version_text(registers.read32(reg::vs))},
      {"CC", reg::cc, cc,
       std::string((cc & cc::enable) != 0 ? "enabled" : "disabled") + ", pages of " +
           std::to_string(cc::page_bytes(cc)) + " bytes"},
      {"CSTS", reg::csts, csts,
       std::string((csts & csts::ready) != 0 ? "ready" : "not ready") + ((csts & csts::fatal) != 0 ? ", fatal" : "")},
      {"AQA", reg::aqa, aqa,
       "admin queues of " + std::to_string((aqa & 0xfff) + 1) + " and " + std::to_string((aqa >> 16 & 0xfff) + 1) +
           " entries"},
      {"ASQ", reg::asq, registers.read64(reg::asq), "admin submissions at this I/O address"},
      {"ACQ", reg::acq, registers.read64(reg::acq), "admin completions at this I/O address"},
  };
}

// One operation, to its end; what went wrong, or nothing.
std::string complete(IoQueue& queue, const Io& io) {
  queue.submit({&io, 1});
  IoDone done;
  // Bounded by the deadlines of commands, after which the controller is reset or given up.
  while (queue.poll({&done, 1}) == 0) {
    if (queue.is_stuck()) return "the controller can't be stopped";
    queue.after_sleep();
    std::this_thread::yield();
  }
  if (done.code != Code::ok) {
    return std::string(code_name(done.code)) + ", number " + hexadecimal(static_cast<std::uint32_t>(done.system_error));
  }
  return io.kind == IoKind::flush || done.bytes == io.length ? ""
                                                             : "only " + std::to_string(done.bytes) + " bytes came";
}

class Selftest {
 public:
  Selftest(Controller& controller, const NamespaceInfo& space, const std::function<bool()>& keep_going,
           std::vector<NvmeCheck>& checks)
      : controller_(controller), keep_going_(keep_going), checks_(checks), space_{.info = space} {}

  void run_all() {
    auto data = DmaMemory::create(controller_.transport(), 2 * half);
    auto queue = controller_.make_queue();
    if (!data || !queue) {
      check("memory and a queue", data ? queue.error().message : data.error().message);
      return;
    }
    data_ = std::move(*data);
    check_lengths(**queue);
    check_alignments(**queue);
    check_bounds(**queue);
    check("flush", run(**queue, {.kind = IoKind::flush, .space = &space_}));
    if ((*queue)->is_stuck()) return data_.leave_behind();
    queue->reset();
    check_queues();
  }

 private:
  static constexpr std::uint64_t half = 2 << 20;

  void check(const std::string& what, const std::string& failure, const std::string& seen = "") {
    checks_.push_back({"namespace " + std::to_string(space_.info.id) + ": " + what, failure.empty(),
                       failure.empty() ? seen : failure});
  }
  Io read(std::uint64_t offset, std::uint64_t length, std::uint64_t at) const {
    return {IoKind::read, &space_, offset, length, data_.address() + at, 0};
  }
  std::string run(IoQueue& queue, const Io& io) const {
    return keep_going_ && !keep_going_() ? "interrupted" : complete(queue, io);
  }
  std::uint64_t longest() const { return std::min(half - 4096, space_.info.size_bytes()); }

  // What comes in one piece must be what comes block by block.
  void check_lengths(IoQueue& queue) {
    const std::uint64_t block = space_.info.block_bytes;
    std::string failure;
    std::uint64_t compared = 0;
    for (std::uint64_t length = block; length <= longest() && failure.empty(); length *= 2) {
      failure = run(queue, read(0, length, 0));
      for (std::uint64_t at = 0; at < length && failure.empty(); at += std::max(block, length / 8)) {
        failure = run(queue, read(at, block, half));
        if (failure.empty() && std::memcmp(data_.data() + at, data_.data() + half, block) != 0) {
          failure =
              "a read of " + std::to_string(length) + " bytes differs from one of a block at " + std::to_string(at);
        }
      }
      compared += length;
    }
    check("reads of every length", failure, std::to_string(compared) + " bytes, in one piece and in blocks");
  }

  void check_alignments(IoQueue& queue) {
    const std::uint64_t length = std::min(longest(), std::uint64_t{64 << 10});
    std::string failure = run(queue, read(0, length, 0));
    for (const std::uint64_t offset : {4, 512, 2048, 4092}) {
      if (failure.empty()) failure = run(queue, read(0, length, half + offset));
      if (failure.empty() && std::memcmp(data_.data(), data_.data() + half + offset, length) != 0) {
        failure = "memory " + std::to_string(offset) + " bytes into a page gets other bytes";
      }
    }
    check("memory of every alignment", failure, std::to_string(length) + " bytes, to five places in a page");
  }

  void check_bounds(IoQueue& queue) {
    const std::uint64_t block = space_.info.block_bytes;
    std::string failure = run(queue, read(space_.info.size_bytes() - block, block, 0));
    if (failure.empty() && run(queue, read(space_.info.size_bytes(), block, 0)).empty()) {
      failure = "a block past the end was read";
    }
    const Io write{IoKind::write, &space_, 0, block, data_.address(), 0};
    if (failure.empty() && run(queue, write).find("read_only") == std::string::npos)
      failure = "a write was not refused";
    check("the last block, none after it, and no writes", failure);
  }

  void check_queues() {
    const std::uint32_t count = std::min(controller_.info().io_queues, 4U);
    std::vector<std::string> failures(count);
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < count; ++i) {
      threads.emplace_back([this, i, &failure = failures[i]] {
        auto queue = controller_.make_queue();
        if (!queue) failure = queue.error().message;
        const std::uint64_t length = std::min<std::uint64_t>(space_.info.size_bytes(), 16 << 10);
        for (int round = 0; round < 100 && failure.empty(); ++round)
          failure = run(**queue, read(0, length, i * length));
      });
    }
    for (auto& thread : threads) thread.join();
    std::string failure;
    for (const std::string& one : failures) failure += one;
    check("several queues at once", failure, std::to_string(count) + " queues");
  }

  Controller& controller_;
  const std::function<bool()>& keep_going_;
  std::vector<NvmeCheck>& checks_;
  const Namespace space_;
  DmaMemory data_;
};

// Reads and writes at random, with a copy of what the disk should hold.
class Trial {
 public:
  Trial(const NvmeTrial& trial, IoQueue& queue, const Namespace& space, DmaMemory& data, NvmeTrialReport& report)
      : trial_(trial),
        queue_(queue),
        space_(space),
        data_(data),
        report_(report),
        random_(trial.seed),
        disk_(space.info.size_bytes()) {}

  void run_all() {
    std::uint64_t started = 0, wanted = trial_.operations;
    while (report_.operations < wanted && report_.wrong.empty()) {
      if (trial_.keep_going && !trial_.keep_going()) wanted = started;
      for (std::size_t slot = 0; slot < depth && started < wanted; ++slot) {
        if (slots_[slot].busy) continue;
        begin(slot);
        ++started;
      }
      queue_.submit(std::span(batch_).first(batched_));
      batched_ = 0;
      std::array<IoDone, depth> done;
      const std::size_t count = queue_.poll(done);
      for (std::size_t i = 0; i < count; ++i) note(done[i]);
      if (count == 0) {
        if (queue_.is_stuck()) {
          data_.leave_behind();
          report_.wrong.push_back("the controller can't be stopped");
        }
        queue_.after_sleep();
        std::this_thread::yield();
      }
    }
  }

 private:
  static constexpr std::size_t depth = 32;
  static constexpr std::uint64_t slot_bytes = 64 << 10;
  struct Slot {
    Io io;
    bool busy = false;
  };

  // Each slot has a part of the disk for itself, so that it is known what every operation must see.
  void begin(std::size_t slot) {
    const std::uint64_t part = disk_.size() / depth;
    const std::uint64_t block = space_.info.block_bytes;
    const std::uint64_t blocks = 1 + random_() % (random_() % 8 == 0 ? slot_bytes / block : 8);
    const std::uint64_t length = blocks * block;
    const std::uint64_t offset = slot * part + random_() % ((part - length) / block + 1) * block;
    constexpr std::array kinds = {IoKind::read, IoKind::read, IoKind::read, IoKind::write, IoKind::write, IoKind::zero};
    const IoKind kind = kinds[random_() % kinds.size()];
    std::byte* const memory = data_.data() + slot * slot_bytes;
    if (kind == IoKind::write) {
      const auto filler = static_cast<int>(random_() & 0xff);
      std::memset(memory, filler, length);
      std::memset(&disk_[offset], filler, length);
    } else if (kind == IoKind::zero) {
      std::memset(&disk_[offset], 0, length);
    } else {
      std::memset(memory, 0xee, length);
    }
    slots_[slot] = {{kind, &space_, offset, length, data_.address() + slot * slot_bytes, slot}, true};
    batch_[batched_++] = slots_[slot].io;
  }

  void note(const IoDone& done) {
    const std::size_t slot = done.cookie;
    if (slot >= depth || !slots_[slot].busy) {
      report_.wrong.emplace_back("an operation came back that was not in flight");
      return;
    }
    const Io& io = slots_[slot].io;
    if (done.system_error == EAGAIN || (done.code == Code::ok && done.bytes < io.length)) {
      ++report_.retries;
      batch_[batched_++] = io;
      return;
    }
    slots_[slot].busy = false;
    ++report_.operations;
    if (done.code != Code::ok) report_.wrong.push_back("an operation failed: " + std::string(code_name(done.code)));
    if (io.kind == IoKind::read && std::memcmp(data_.data() + slot * slot_bytes, &disk_[io.offset], io.length) != 0) {
      report_.wrong.push_back("other bytes at " + std::to_string(io.offset));
    }
  }

  const NvmeTrial& trial_;
  IoQueue& queue_;
  const Namespace& space_;
  DmaMemory& data_;
  NvmeTrialReport& report_;
  std::mt19937_64 random_;
  std::vector<std::byte> disk_;
  std::array<Slot, depth> slots_{};
  std::array<Io, depth> batch_{};
  std::size_t batched_ = 0;
};

SoftFaults faults_of(const NvmeTrial& trial) {
  if (!trial.faults) return {};
  SoftFaults faults{.seed = trial.seed,
                    .delay = 5,
                    .shuffle = 100,
                    .duplicate = 20,
                    .unknown = 20,
                    .unfetched = 20,
                    .old_head = 100,
                    .fail = 20};
  faults.statuses = {status::internal_error, status::data_transfer_error, status::abort_requested,
                     status::namespace_not_ready, make_status(status::path, 0)};
  faults.max_delay = std::chrono::microseconds(200);
  faults.fatal_after = trial.operations / 2;
  return faults;
}

}  // namespace

NvmeController describe(Controller& controller) {
  const ControllerInfo& info = controller.info();
  NvmeController described{.serial = info.serial,
                           .model = info.model,
                           .firmware = info.firmware,
                           .version = version_text(info.version),
                           .max_queue_entries = info.max_queue_entries,
                           .io_queues = info.io_queues,
                           .max_transfer_bytes = info.max_transfer_bytes,
                           .write_zeroes = info.write_zeroes,
                           .deallocate = info.deallocate,
                           .volatile_write_cache = info.volatile_write_cache,
                           .namespaces = {}};
  for (const NamespaceInfo& space : controller.namespaces()) {
    described.namespaces.push_back({space.id, space.block_bytes, space.size_bytes(), space.refusal});
  }
  return described;
}

NvmeRegisters read_registers(Transport& transport, const ControllerOptions& options) {
  // What is tried may change them, also where it fails.
  auto found = registers_of(transport);
  const auto controller = Controller::open(transport, options);
  if (!controller) return {std::move(found), controller.error()};
  return {registers_of(transport), std::nullopt};
}

std::vector<NvmeCheck> run_selftest(Transport& transport, const ControllerOptions& options,
                                    const std::function<bool()>& keep_going) {
  std::vector<NvmeCheck> checks;
  auto controller = Controller::open(transport, options);
  checks.push_back({"reset, identify, queues", controller.ok(),
                    controller ? (*controller)->info().model + ", serial " + (*controller)->info().serial
                               : controller.error().message});
  if (!controller) return checks;
  for (const NamespaceInfo& space : (*controller)->namespaces()) {
    if (space.refusal.empty()) {
      Selftest(**controller, space, keep_going, checks).run_all();
    } else {
      checks.push_back({"namespace " + std::to_string(space.id), false, space.refusal});
    }
  }
  const std::string failure = (*controller)->failure();
  checks.push_back({"still working at the end", failure.empty() && (*controller)->resets() == 0, failure});
  return checks;
}

Result<NvmeTrialReport> run_trial(const NvmeTrial& trial) {
  if (trial.block_bytes != 512 && trial.block_bytes != 4096) {
    return Error{Code::invalid_argument, 0, "blocks of " + std::to_string(trial.block_bytes) + " bytes",
                 "choose 512 or 4096"};
  }
  constexpr std::uint64_t disk_bytes = 16 << 20;
  SoftShape shape;
  shape.mdts = 3;
  shape.block_bytes = trial.block_bytes;
  SoftController soft(std::make_unique<RamBackend>(disk_bytes), shape, faults_of(trial));
  ControllerOptions options;
  options.queue_entries = 64;
  NvmeTrialReport report;
  const TimePoint begun = Clock::now();
  {
    auto controller = Controller::open(soft, options);
    if (!controller) return std::move(controller).error();
    const auto info = (*controller)->find_namespace(1);
    if (!info) return info.error();
    const Namespace space{.info = *info, .writable_blocks = info->size_blocks};
    auto data = DmaMemory::create(soft, 2 << 20);
    if (!data) return std::move(data).error();
    auto queue = (*controller)->make_queue();
    if (!queue) return std::move(queue).error();
    Trial(trial, **queue, space, *data, report).run_all();
    report.strange_completions = (*queue)->state().strange_completions;
    report.resets = (*controller)->resets();
  }
  report.seconds = seconds_between(begun, Clock::now());
  const SoftCounters counters = soft.counters();
  report.commands = counters.commands;
  report.doorbells = counters.doorbells;
  report.aborts = counters.aborts;
  report.breaches = soft.breaches();
  return report;
}

}  // namespace penstock::nvme
