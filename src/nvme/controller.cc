#include "nvme/controller.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"
#include "nvme/errors.h"
#include "nvme/io_queue.h"

namespace penstock::nvme {
namespace {

constexpr std::uint32_t admin_entries = 32;
constexpr std::uint32_t most_namespaces = 1024;
constexpr std::uint32_t most_resets_in_a_row = 3;
constexpr auto least_ready_time = std::chrono::milliseconds(500);
constexpr auto shutdown_time = std::chrono::seconds(5);
constexpr auto register_nap = std::chrono::microseconds(100);
// Of the longest command, in pages: a limit beyond this is none.
constexpr std::uint8_t beyond_ours = 20;
// Blocks of 512 bytes to 64 KiB.
constexpr std::uint8_t least_block_exponent = 9;
constexpr std::uint8_t most_block_exponent = 16;

// Text fields are padded with spaces; a controller that lies may put anything there.
std::string text_field(const char* field, std::size_t size) {
  std::string text(field, size);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = ' ';
  }
  const auto end = text.find_last_not_of(' ');
  text.erase(end == std::string::npos ? 0 : end + 1);
  return text;
}

// A fatal status, or all ones: the device is gone.
bool has_failed(std::uint32_t status) {
  return (status & csts::fatal) != 0;
}

Error gone(const std::string& name) {
  return {Code::not_found, 0, name + " is gone: its registers read as all ones",
          "check that it is plugged in and powered"};
}

}  // namespace

Result<std::unique_ptr<Controller>> Controller::open(Transport& transport, const ControllerOptions& options) {
  std::unique_ptr<Controller> controller(new Controller(transport, options));
  const std::lock_guard lock(controller->mutex_);
  if (auto status = controller->start(); !status) return std::move(status).error();
  return controller;
}

Controller::Controller(Transport& transport, const ControllerOptions& options)
    : transport_(transport), options_(options), registers_(transport.registers()) {}

Controller::~Controller() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::working && admin_memory_.data() != nullptr) {
    if (!is_gone()) shut_down();
    if (!disable() && !transport_.isolate()) state_ = State::unstoppable;
  }
  if (state_ == State::unstoppable) admin_memory_.leave_behind();
}

// Lets it write what it has cached.
void Controller::shut_down() {
  if ((registers_.read32(reg::csts) & csts::ready) == 0) return;
  registers_.write32(reg::cc, (registers_.read32(reg::cc) & ~cc::shutdown_mask) | cc::shutdown_normal);
  const TimePoint deadline = Clock::now() + shutdown_time;
  while ((registers_.read32(reg::csts) & csts::shutdown_mask) != csts::shutdown_complete && Clock::now() < deadline) {
    std::this_thread::sleep_for(register_nap);
  }
}

Status Controller::start() {
  if (auto status = check_capabilities(); !status) return status;
  if (auto status = disable(); !status) return status;
  const std::size_t page = info_.page_bytes;
  auto memory = DmaMemory::create(transport_, 3 * page);
  if (!memory) return std::move(memory).error();
  admin_memory_ = std::move(*memory);
  const std::uint32_t entries = std::min(admin_entries, std::bit_floor(info_.max_queue_entries));
  admin_slots_.resize(entries);
  const std::uint32_t stride = capabilities_.doorbell_stride_bytes();
  admin_queue_.memory = {.id = 0,
                         .entries = entries,
                         .completion_entries = entries,
                         .submissions = reinterpret_cast<Command*>(admin_memory_.data()),
                         .completions = reinterpret_cast<Completion*>(admin_memory_.data() + page),
                         .slots = admin_slots_.data(),
                         .tail_doorbell = registers_.word(tail_doorbell(0, stride)),
                         .head_doorbell = registers_.word(head_doorbell(0, stride))};
  auto status = enable();
  // A fatal status ends with a reset (NVMe 2.0 §9.5), so one that is left from before gets another.
  if (!status && has_failed(registers_.read32(reg::csts)) && disable()) status = enable();
  if (!status) {
    // It may have begun to use what it was given, and is not ready to be told otherwise.
    state_ = transport_.isolate() ? State::failed : State::unstoppable;
    return status;
  }
  if (status = identify_all(); !status) return status;
  return negotiate_queues();
}

Status Controller::check_capabilities() {
  const std::string& name = transport_.name();
  if (registers_.size_bytes() < reg::doorbells + 8) {
    return Error{Code::unsupported, 0, name + ": too few registers for an NVMe controller",
                 "check that it is an NVMe controller"};
  }
  if (is_gone()) return gone(name);
  capabilities_.bits = registers_.read64(reg::cap);
  info_.version = registers_.read32(reg::vs);
  info_.max_queue_entries = capabilities_.max_queue_entries();
  info_.page_bytes = capabilities_.min_page_bytes();
  const bool can = capabilities_.nvm_command_set() && info_.max_queue_entries >= 2 &&
                   info_.page_bytes <= system_page_bytes() && info_.page_bytes <= capabilities_.max_page_bytes();
  if (can && pairs_with_doorbells() > 0) return {};
  if (can)
    return Error{Code::unsupported, 0, name + ": no room for an I/O queue's doorbells",
                 "check that it is an NVMe disk"};
  return Error{Code::unsupported, 0, name + ": unusable capabilities, CAP is " + std::to_string(capabilities_.bits),
               "check that it is an NVMe disk"};
}

// I/O queue pairs whose doorbells are among the registers that are mapped, after those of the admin queue.
std::uint32_t Controller::pairs_with_doorbells() const {
  const std::size_t last = (registers_.size_bytes() - reg::doorbells - 4) / capabilities_.doorbell_stride_bytes();
  return last == 0 ? 0 : static_cast<std::uint32_t>(std::min<std::size_t>((last - 1) / 2, UINT16_MAX));
}

Status Controller::wait_until_ready(bool ready) {
  const Duration told = std::chrono::milliseconds(capabilities_.ready_timeout_ms());
  const Duration time =
      options_.ready_time > Duration{} ? options_.ready_time : std::max<Duration>(told, least_ready_time);
  const TimePoint deadline = Clock::now() + time;
  while (true) {
    const std::uint32_t status = registers_.read32(reg::csts);
    if (status == all_ones) return gone(transport_.name());
    if (ready && (status & csts::fatal) != 0) {
      return Error{Code::io_error, 0, transport_.name() + " reports a fatal status while starting", "power-cycle it"};
    }
    if (((status & csts::ready) != 0) == ready) return {};
    if (Clock::now() >= deadline) {
      return Error{Code::timed_out, 0,
                   transport_.name() + " did not become " + (ready ? "ready" : "idle") + " in the time it asked for",
                   "power-cycle it"};
    }
    std::this_thread::sleep_for(register_nap);
  }
}

Status Controller::disable() {
  const std::uint32_t configuration = registers_.read32(reg::cc);
  if ((configuration & cc::enable) != 0) {
    // One that is starting must get there, or fail, before it is told to stop (NVMe 2.0 §3.1.3.5). If it does not even
    // do that, there is nothing else to try.
    (void)wait_until_ready(true);
    registers_.write32(reg::cc, configuration & ~(cc::enable | cc::shutdown_mask));
  }
  return wait_until_ready(false);
}

Status Controller::enable() {
  std::memset(admin_memory_.data(), 0, admin_memory_.size_bytes());
  CpuPlatform platform(registers_);
  QueuePair<CpuPlatform>(admin_queue_, platform).initialize();
  admin_stuck_ = false;
  const std::uint32_t last = admin_queue_.memory.entries - 1;
  registers_.write32(reg::aqa, last << 16 | last);
  registers_.write64(reg::asq, admin_memory_.address());
  registers_.write64(reg::acq, admin_memory_.address() + info_.page_bytes);
  registers_.write32(reg::cc, cc::enable | cc::entry_sizes | cc::page_size(info_.page_bytes));
  return wait_until_ready(true);
}

Result<std::uint32_t> Controller::admin(const Command& command, const std::string& what) {
  if (admin_stuck_) {
    return Error{Code::timed_out, 0, transport_.name() + ": " + what + ": the admin queue is stuck", "power-cycle it"};
  }
  CpuPlatform platform(registers_);
  QueuePair<CpuPlatform> pair(admin_queue_, platform);
  const Submission submission{command, &admin_token_};
  const std::uint64_t deadline = CpuPlatform::to_ns(Clock::now() + options_.admin_time);
  const bool sent = pair.submit(&submission, 1, deadline) == 1;
  if (!sent || pair.wait(admin_token_, deadline) != Waited::done) {
    admin_stuck_ = true;
    if (is_gone()) return gone(transport_.name());
    return Error{Code::timed_out, 0, transport_.name() + " did not answer: " + what, "power-cycle it"};
  }
  const StatusField status = pair.status_of(admin_token_);
  if (status.ok()) return admin_token_.result;
  return Error{code_of(status), number_of(status), transport_.name() + ": " + what + ": " + text_of(status), ""};
}

// Into the admin queue's page of data, where nothing is left of what was there before: a controller may say that it is
// done, and write nothing.
Status Controller::identify(std::uint32_t cns, std::uint32_t nsid, const std::string& what) {
  std::memset(admin_memory_.data() + 2 * info_.page_bytes, 0, identify_bytes);
  Command command{};
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::identify);
  command.nsid = nsid;
  command.prp1 = admin_memory_.address() + 2 * info_.page_bytes;
  command.dw10 = cns;
  auto done = admin(command, what);
  if (!done) return std::move(done).error();
  return {};
}

Status Controller::identify_all() {
  if (auto status = identify(identify_controller, 0, "identify the controller"); !status) return status;
  const std::byte* const data = admin_memory_.data() + 2 * info_.page_bytes;
  IdentifyController self{};
  std::memcpy(&self, data, sizeof self);
  const auto allows = [](std::uint8_t sizes, std::uint8_t wanted) {
    return (sizes & 0xf) <= wanted && sizes >> 4 >= wanted;
  };
  if (!allows(self.submission_entry_sizes, 6) || !allows(self.completion_entry_sizes, 4)) {
    return Error{Code::unsupported, 0, transport_.name() + ": unusable entry sizes", ""};
  }
  info_.serial = text_field(self.serial, sizeof self.serial);
  info_.model = text_field(self.model, sizeof self.model);
  info_.firmware = text_field(self.firmware, sizeof self.firmware);
  info_.deallocate = (self.optional_commands >> 2 & 1) != 0;
  info_.write_zeroes = (self.optional_commands >> 3 & 1) != 0;
  info_.volatile_write_cache = (self.volatile_write_cache & 1) != 0;
  // A limit beyond ours, or none, is no limit.
  info_.max_transfer_bytes = std::bit_floor(std::max(options_.max_transfer_bytes, info_.page_bytes));
  if (self.mdts != 0 && self.mdts < beyond_ours) {
    info_.max_transfer_bytes = std::min(info_.max_transfer_bytes, capabilities_.min_page_bytes() << self.mdts);
  }

  if (auto status = identify_limits(); !status) return status;

  namespaces_.clear();
  if (auto status = identify(identify_active_namespaces, 0, "list the namespaces"); !status) return status;
  std::vector<std::uint32_t> ids(most_namespaces);
  std::memcpy(ids.data(), data, ids.size() * sizeof ids[0]);
  std::uint32_t last = 0;
  for (const std::uint32_t id : ids) {
    if (id == 0) break;
    if (id <= last || id >= all_namespaces - 1) {
      return Error{Code::io_error, 0, transport_.name() + ": a list of namespaces that is not in order", ""};
    }
    last = id;
    if (auto status = read_namespace(id); !status) return status;
  }
  return {};
}

// Of commands that move no data. Older controllers know no such page, and have no limits.
Status Controller::identify_limits() {
  constexpr std::uint32_t version_1_4 = 0x10400;
  if (info_.version < version_1_4) return {};
  if (auto status = identify(identify_command_set, 0, "identify the command set"); !status) {
    return admin_stuck_ ? status : Status();
  }
  IdentifyCommandSet limits{};
  std::memcpy(&limits, admin_memory_.data() + 2 * info_.page_bytes, sizeof limits);
  if (limits.write_zeroes != 0 && limits.write_zeroes < beyond_ours) {
    info_.max_zeroes_bytes = capabilities_.min_page_bytes() << limits.write_zeroes;
  }
  for (const std::uint64_t blocks : {std::uint64_t{limits.dataset_range_blocks}, limits.dataset_blocks}) {
    if (blocks != 0) info_.max_deallocate_blocks = std::min(info_.max_deallocate_blocks, blocks);
  }
  return {};
}

Status Controller::read_namespace(std::uint32_t id) {
  const std::string what = "identify namespace " + std::to_string(id);
  if (auto status = identify(identify_namespace, id, what); !status) return status;
  IdentifyNamespace data{};
  std::memcpy(&data, admin_memory_.data() + 2 * info_.page_bytes, sizeof data);
  NamespaceInfo space{.id = id};
  const unsigned index = (data.format & 0xfU) | (data.format >> 5 & 3U) << 4;
  const LbaFormat format = data.formats[index];
  const bool block_fits = format.block_exponent >= least_block_exponent && format.block_exponent <= most_block_exponent;
  if (index > data.format_count || !block_fits) {
    space.refusal = "its block size is not supported";
  } else if (format.metadata_bytes != 0) {
    space.refusal = "its blocks have metadata";
  } else if ((data.protection & 7) != 0) {
    space.refusal = "it has protection information";
  } else if (std::uint64_t{1} << format.block_exponent > info_.max_transfer_bytes) {
    space.refusal = "a block is longer than the controller can transfer";
  } else if (data.size_blocks == 0 || data.size_blocks > std::uint64_t{INT64_MAX} >> format.block_exponent) {
    space.refusal = "its size makes no sense";
  }
  if (block_fits) space.block_bytes = 1U << format.block_exponent;
  if (space.refusal.empty()) space.size_blocks = data.size_blocks;
  namespaces_.push_back(space);
  return {};
}

Status Controller::negotiate_queues() {
  const std::uint32_t wanted = std::clamp(options_.io_queues, 1U, pairs_with_doorbells());
  Command command{};
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::set_features);
  command.dw10 = feature_number_of_queues;
  command.dw11 = (wanted - 1) << 16 | (wanted - 1);
  auto granted = admin(command, "ask for queues");
  if (!granted) return std::move(granted).error();
  const std::uint32_t count = std::min({wanted, (*granted & 0xffff) + 1, (*granted >> 16) + 1});
  if (info_.io_queues == 0) {
    info_.io_queues = count;
    queues_.resize(count + 1);
  }
  if (count >= info_.io_queues) return {};
  return Error{Code::io_error, 0, transport_.name() + " has fewer queues than before it was reset", ""};
}

Result<NamespaceInfo> Controller::find_namespace(std::uint32_t id) const {
  for (const NamespaceInfo& space : namespaces_) {
    if (space.id != id) continue;
    if (space.refusal.empty()) return space;
    return Error{Code::unsupported, 0, transport_.name() + ": namespace " + std::to_string(id) + ": " + space.refusal,
                 "format it without metadata, in blocks of 512 or 4096 bytes"};
  }
  return Error{Code::not_found, 0, transport_.name() + " has no namespace " + std::to_string(id),
               "`penstock nvme identify` lists them"};
}

Result<std::unique_ptr<IoQueue>> Controller::make_queue() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::working) return Error{Code::io_error, 0, failure_, ""};
  const auto last = queues_.begin() + info_.io_queues + 1;
  const auto free = std::find(queues_.begin() + 1, last, nullptr);
  if (free == last) {
    return Error{Code::unsupported, 0, transport_.name() + " has only " + std::to_string(info_.io_queues) + " queues",
                 "use fewer lanes"};
  }
  auto queue = IoQueue::create(*this, static_cast<std::uint16_t>(free - queues_.begin()));
  if (!queue) return queue;
  if (auto status = create_pair(**queue); !status) {
    if ((*queue)->created_) reset(status.error().message);
    if (state_ == State::unstoppable) (*queue)->memory_.leave_behind();
    return std::move(status).error();
  }
  *free = queue->get();
  (*queue)->registered_ = true;
  return queue;
}

// The pair is new to both sides. If that fails, half of it may be known to the controller: then it counts as created.
Status Controller::create_pair(IoQueue& queue) {
  const QueuePairMemory& memory = queue.state_.memory;
  std::memset(static_cast<void*>(memory.completions), 0, memory.completion_entries * sizeof(Completion));
  queue.pair().initialize();
  constexpr std::uint32_t contiguous = 1;
  constexpr std::uint32_t interrupts = 2;
  const std::string what = "queue " + std::to_string(queue.id_);
  Command command{};
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::create_completion_queue);
  command.prp1 = queue.memory_.address() +
                 static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(memory.completions) - queue.memory_.data());
  command.dw10 = (memory.completion_entries - 1) << 16 | queue.id_;
  command.dw11 = contiguous | (queue.interrupt_ ? interrupts | std::uint32_t{queue.id_} << 16 : 0);
  auto done = admin(command, "create completion " + what);
  queue.created_ = done.ok() || admin_stuck_;
  if (!done) return std::move(done).error();
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::create_submission_queue);
  command.prp1 = queue.memory_.address();
  command.dw10 = (memory.entries - 1) << 16 | queue.id_;
  command.dw11 = contiguous | std::uint32_t{queue.id_} << 16;
  done = admin(command, "create submission " + what);
  if (done) return {};
  command = {};
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::delete_completion_queue);
  command.dw10 = queue.id_;
  queue.created_ = admin_stuck_ || !admin(command, "delete completion " + what);
  return std::move(done).error();
}

Status Controller::delete_pair(IoQueue& queue) {
  const std::string what = "queue " + std::to_string(queue.id_);
  Command command{};
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::delete_submission_queue);
  command.dw10 = queue.id_;
  if (auto done = admin(command, "delete submission " + what); !done) return std::move(done).error();
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::delete_completion_queue);
  if (auto done = admin(command, "delete completion " + what); !done) return std::move(done).error();
  queue.created_ = false;
  return {};
}

bool Controller::remove(IoQueue& queue) {
  const std::lock_guard lock(mutex_);
  queues_[queue.id_] = nullptr;
  if (queue.created_ && state_ == State::working && !delete_pair(queue)) reset("a queue could not be deleted");
  return state_ != State::unstoppable;
}

void Controller::recover(IoQueue& queue, const Token& overdue) {
  const std::lock_guard lock(mutex_);
  // Somebody else has done something about it meanwhile.
  if (state_ != State::working || queue.pair().is_poisoned()) return;
  if (has_failed(registers_.read32(reg::csts))) {
    reset("the controller failed");
    return;
  }
  if (try_abort(queue, overdue)) return;
  queue.pair().poison(Poison::timed_out);
  if (!delete_pair(queue)) reset("a command took too long, and its queue could not be deleted");
}

// Whether the command has come back.
bool Controller::try_abort(IoQueue& queue, const Token& overdue) {
  const std::int32_t cid = queue.pair().command_id(overdue);
  if (cid < 0) return true;
  Command command{};
  command.opcode = static_cast<std::uint8_t>(AdminOpcode::abort);
  command.dw10 = queue.id_ | static_cast<std::uint32_t>(cid) << 16;
  constexpr std::uint32_t not_aborted = 1;
  const auto done = admin(command, "abort a command");
  if (!done || (*done & not_aborted) != 0) return false;
  return queue.pair().wait(overdue, CpuPlatform::to_ns(Clock::now() + options_.admin_time)) == Waited::done;
}

void Controller::rejoin(IoQueue& queue) {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t tries = 0; state_ == State::working && tries <= most_resets_in_a_row; ++tries) {
    if (queue.created_) {
      // Poisoned, and not by a step that took the queue away from the controller.
      if (!delete_pair(queue)) reset("a queue could not be deleted");
      continue;
    }
    queue.pair().drain();  // what was completed before it stopped
    queue.pair().end_in_flight(status::abort_requested);
    if (create_pair(queue)) return;
    reset("a queue could not be made again");
  }
  if (state_ == State::working) isolate(transport_.name() + ": a queue could not be made again");
  queue.pair().drain();
  if (state_ == State::failed) {
    queue.pair().end_in_flight(make_status(status::generic, status::internal_error.code(), true));
  }
  queue.give_up();
}

void Controller::check_alive() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::working) return;
  if (has_failed(registers_.read32(reg::csts))) reset("the controller failed");
}

// Every queue is taken away from the controller; their owners make them again (rejoin).
void Controller::reset(const std::string& why) {
  log(LogLevel::warning, transport_.name() + " is reset: " + why);
  ++resets_;
  const std::uint32_t in_a_row = __atomic_add_fetch(&resets_in_a_row_, 1, __ATOMIC_RELAXED);
  for (IoQueue* queue : queues_) {
    if (queue != nullptr) queue->pair().poison(Poison::reset);
  }
  if (is_gone()) {
    // What reads as all ones may be the way to it, and not the device itself.
    isolate(transport_.name() + " is gone");
  } else if (auto stopped = disable(); !stopped) {
    isolate(stopped.error().message);
  } else if (in_a_row > most_resets_in_a_row) {
    fail(State::failed, transport_.name() + " fails again and again after resets");
  } else if (auto started = enable(); !started) {
    isolate(started.error().message);
  } else if (auto queues = negotiate_queues(); !queues) {
    isolate(queues.error().message);
  }
  for (IoQueue* queue : queues_) {
    if (queue == nullptr) continue;
    queue->created_ = false;
    if (!queue->interrupt_) continue;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(*queue->interrupt_, &one, sizeof one);  // its owner may sleep
  }
}

void Controller::isolate(const std::string& why) {
  fail(transport_.isolate() ? State::failed : State::unstoppable, why);
}

void Controller::fail(State state, const std::string& why) {
  state_ = state;
  failure_ = why;
  log(LogLevel::error, why + (state == State::failed ? "" : "; it can't be stopped, and memory is left behind"));
  for (IoQueue* queue : queues_) {
    if (queue != nullptr) queue->pair().poison(Poison::removed);
  }
}

std::string Controller::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool Controller::is_unstoppable() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::unstoppable;
}

std::uint32_t Controller::resets() const {
  const std::lock_guard lock(mutex_);
  return resets_;
}

}  // namespace penstock::nvme
