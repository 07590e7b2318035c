#include "nvme/io_queue.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "nvme/errors.h"

namespace penstock::nvme {
namespace {

constexpr std::uint64_t most_blocks = 1 << 16;                          // of a command with a 16-bit count
constexpr std::uint64_t most_blocks_of_range = std::uint64_t{1} << 31;  // of a range to deallocate

// A read of a register waits for the bus and back.
constexpr auto look_period = std::chrono::milliseconds(50);

bool moves_bytes(IoKind kind) {
  return kind == IoKind::read || kind == IoKind::write;
}
bool changes_blocks(IoKind kind) {
  return kind != IoKind::read && kind != IoKind::flush;
}

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Result<std::unique_ptr<IoQueue>> IoQueue::create(Controller& controller, std::uint16_t id) {
  std::unique_ptr<IoQueue> queue(new IoQueue(controller, id));
  if (auto status = queue->allocate(); !status) return std::move(status).error();
  return queue;
}

IoQueue::IoQueue(Controller& controller, std::uint16_t id)
    : controller_(controller), id_(id), registers_(controller.transport_.registers()), platform_(registers_, ended_) {}

Status IoQueue::allocate() {
  const ControllerInfo& info = controller_.info_;
  const std::uint32_t most = std::bit_floor(std::min(info.max_queue_entries, QueuePairMemory::max_entries));
  const std::uint32_t entries = std::min(std::bit_floor(controller_.options_.queue_entries), most);
  const std::uint32_t completion_entries = std::min(2 * entries, most);
  list_bytes_ = std::max(prp_list_bytes(info.max_transfer_bytes, info.page_bytes), sizeof(DatasetRange));
  const std::size_t completions_at = round_up(entries * sizeof(Command), info.page_bytes);
  zeros_at_ = completions_at + round_up(completion_entries * sizeof(Completion), info.page_bytes);
  lists_at_ = zeros_at_ + info.page_bytes;
  auto memory = DmaMemory::create(controller_.transport_, lists_at_ + list_bytes_ * entries);
  if (!memory) return std::move(memory).error();
  memory_ = std::move(*memory);

  slots_.resize(entries);
  const std::uint32_t stride = controller_.capabilities_.doorbell_stride_bytes();
  state_.memory = {.id = id_,
                   .entries = entries,
                   .completion_entries = completion_entries,
                   .submissions = reinterpret_cast<Command*>(memory_.data()),
                   .completions = reinterpret_cast<Completion*>(memory_.data() + completions_at),
                   .slots = slots_.data(),
                   .tail_doorbell = registers_.word(tail_doorbell(id_, stride)),
                   .head_doorbell = registers_.word(head_doorbell(id_, stride))};
  pair().initialize();

  const std::uint32_t depth = entries - 1;
  ops_.resize(depth);
  commands_.resize(depth);
  sent_.resize(2 * entries);
  for (std::uint32_t i = depth; i > 0; --i) {
    free_ops_.push_back(i - 1);
    free_commands_.push_back(i - 1);
  }
  to_send_.reserve(depth);
  batch_.reserve(depth);
  ended_.reserve(depth);
  done_.reserve(depth);
  if (id_ < controller_.transport_.interrupts()) {
    if (auto fd = controller_.transport_.interrupt(id_)) interrupt_ = *fd;
  }
  return {};
}

IoQueue::~IoQueue() {
  if (!registered_ || controller_.remove(*this)) return;
  log(LogLevel::warning, controller_.transport_.name() + " could not be stopped; the memory of a queue is left behind");
  memory_.leave_behind();
}

std::size_t IoQueue::submit(std::span<const Io> ios) {
  std::size_t taken = 0;
  for (const Io& io : ios) {
    if (live_ops_ == ops_.size()) break;  // what the caller has not taken back counts too
    const std::uint32_t index = free_ops_.back();
    free_ops_.pop_back();
    ++live_ops_;
    ++taken;
    Op& op = ops_[index];
    const std::uint64_t work = io.kind == IoKind::flush ? 1 : io.length;
    op = {.io = io, .end = work, .good = work, .live = true};
    if (const auto code = refusal(io)) {
      op.live = false;
      free_ops_.push_back(index);
      done_.push_back({io.cookie, 0, *code, 0});
      continue;
    }
    to_send_.push_back(index);
  }
  cut_commands();
  send();
  return taken;
}

// Why an operation is not even begun.
std::optional<Code> IoQueue::refusal(const Io& io) const {
  if (io.kind == IoKind::flush) return std::nullopt;
  const Namespace& space = *io.space;
  const std::uint64_t block = space.info.block_bytes;
  if (io.length == 0 || io.offset % block != 0 || io.length % block != 0) return Code::invalid_argument;
  if (moves_bytes(io.kind) && io.address % 4 != 0) return Code::invalid_argument;
  const std::uint64_t size = space.info.size_bytes();
  if (io.offset >= size || io.length > size - io.offset) return Code::out_of_range;
  if (!changes_blocks(io.kind)) return std::nullopt;
  const std::uint64_t first = io.offset / block;
  const std::uint64_t count = io.length / block;
  if (space.writable_blocks == 0 || first < space.first_writable ||
      first - space.first_writable >= space.writable_blocks ||
      count > space.writable_blocks - (first - space.first_writable)) {
    return Code::read_only;
  }
  if (io.kind == IoKind::deallocate && !controller_.info_.deallocate) return Code::unsupported;
  return std::nullopt;
}

std::uint64_t IoQueue::longest_command(const Op& op) const {
  const std::uint64_t block = op.io.space->info.block_bytes;
  switch (op.io.kind) {
    case IoKind::zero:
      if (controller_.info_.write_zeroes) return most_blocks * block;
      [[fallthrough]];
    case IoKind::read:
    case IoKind::write:
      return std::min(controller_.info_.max_transfer_bytes, most_blocks * block) / block * block;
    case IoKind::deallocate:
      return most_blocks_of_range * block;
    case IoKind::flush:
      break;
  }
  return 1;
}

void IoQueue::cut_commands() {
  std::size_t finished = 0;
  for (const std::uint32_t index : to_send_) {
    Op& op = ops_[index];
    const std::uint64_t longest = longest_command(op);
    while (op.sent < op.end && !free_commands_.empty()) {
      const std::uint32_t number = free_commands_.back();
      free_commands_.pop_back();
      CommandRecord& record = commands_[number];
      record.op = index;
      record.offset = op.sent;
      const std::uint64_t length = std::min(longest, op.end - op.sent);
      batch_.push_back({make_command(op, number, length), &record});
      ++op.commands;
      op.sent += length;
    }
    if (op.sent < op.end) break;
    ++finished;
  }
  to_send_.erase(to_send_.begin(), to_send_.begin() + static_cast<std::ptrdiff_t>(finished));
}

PrpListMemory IoQueue::list_of(std::uint32_t record) const {
  const std::size_t at = lists_at_ + record * list_bytes_;
  return {reinterpret_cast<std::uint64_t*>(memory_.data() + at), memory_.address() + at};
}

Command IoQueue::make_command(const Op& op, std::uint32_t record, std::uint64_t length) {
  Command command{};
  command.nsid = op.io.space->info.id;
  if (op.io.kind == IoKind::flush) {
    command.opcode = static_cast<std::uint8_t>(IoOpcode::flush);
    return command;
  }
  const std::uint64_t block = op.io.space->info.block_bytes;
  const std::uint64_t first = (op.io.offset + op.sent) / block;
  const std::uint64_t count = length / block;
  const std::uint64_t page = controller_.info_.page_bytes;
  const PrpListMemory list = list_of(record);
  if (op.io.kind == IoKind::deallocate) {
    const DatasetRange range{0, static_cast<std::uint32_t>(count), first};
    std::memcpy(list.entries, &range, sizeof range);
    command.opcode = static_cast<std::uint8_t>(IoOpcode::dataset);
    command.prp1 = list.address;
    command.dw11 = dataset_deallocate;
    return command;
  }
  command.dw10 = static_cast<std::uint32_t>(first);
  command.dw11 = static_cast<std::uint32_t>(first >> 32);
  command.dw12 = static_cast<std::uint32_t>(count - 1);
  if (op.io.kind == IoKind::zero && controller_.info_.write_zeroes) {
    command.opcode = static_cast<std::uint8_t>(IoOpcode::write_zeroes);
    return command;
  }
  command.opcode = static_cast<std::uint8_t>(op.io.kind == IoKind::read ? IoOpcode::read : IoOpcode::write);
  const Prps prps = op.io.kind == IoKind::zero ? make_repeated_prps(memory_.address() + zeros_at_, length, page, list)
                                               : make_prps(op.io.address + op.sent, length, page, list);
  command.prp1 = prps.first;
  command.prp2 = prps.second;
  return command;
}

void IoQueue::send() {
  if (batch_.empty()) return;
  const std::uint32_t taken = pair().try_submit(batch_.data(), static_cast<std::uint32_t>(batch_.size()));
  if (taken == 0) return;
  const TimePoint deadline = Clock::now() + controller_.options_.command_time;
  for (std::uint32_t i = 0; i < taken; ++i) {
    auto& record = *static_cast<CommandRecord*>(batch_[i].token);
    record.deadline = deadline;
    record.in_flight = true;
    record.serial = next_serial_++;
    sent_[(sent_first_ + sent_count_++) % sent_.size()] = {static_cast<std::uint32_t>(&record - commands_.data()),
                                                           record.serial};
  }
  batch_.erase(batch_.begin(), batch_.begin() + taken);
}

std::size_t IoQueue::poll(std::span<IoDone> done) {
  if (pair().is_poisoned()) controller_.rejoin(*this);
  pair().drain();
  take_ended();
  cut_commands();
  send();
  if (const CommandRecord* late = oldest(); late != nullptr && late->deadline < Clock::now()) {
    controller_.recover(*this, *late);
    take_ended();
  }
  const std::size_t count = std::min(done.size(), done_.size());
  std::copy_n(done_.begin(), count, done.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
  live_ops_ -= count;
  return count;
}

void IoQueue::take_ended() {
  for (CommandRecord* record : ended_) {
    Op& op = ops_[record->op];
    const StatusField field = Pair::status_of(*record);
    record->in_flight = false;
    free_commands_.push_back(static_cast<std::uint32_t>(record - commands_.data()));
    --op.commands;
    if (field.ok()) {
      controller_.note_success();
    } else if (op.failure.ok() || record->offset < op.good) {
      op.failure = field;
      op.good = record->offset;
      send_no_more(record->op);  // what comes after would be thrown away
    }
    end_if_complete(record->op);
  }
  ended_.clear();
  while (sent_count_ > 0) {
    const Sent& first = sent_[sent_first_];
    const CommandRecord& record = commands_[first.record];
    if (record.in_flight && record.serial == first.serial) break;
    sent_first_ = (sent_first_ + 1) % sent_.size();
    --sent_count_;
  }
}

void IoQueue::send_no_more(std::uint32_t index) {
  ops_[index].end = ops_[index].sent;
  const auto place = std::find(to_send_.begin(), to_send_.end(), index);
  if (place != to_send_.end()) to_send_.erase(place);
}

// Of a controller that will never take another command.
void IoQueue::give_up() {
  const StatusField lost = make_status(status::generic, status::internal_error.code(), true);
  for (const Submission& submission : batch_) {
    submission.token->state = Token::done_bit | lost.bits;
    platform_.completed(submission.token);
  }
  batch_.clear();
  while (!to_send_.empty()) {
    const std::uint32_t index = to_send_.front();
    Op& op = ops_[index];
    op.good = std::min(op.good, op.sent);
    op.failure = lost;
    send_no_more(index);
    end_if_complete(index);
  }
}

void IoQueue::end_if_complete(std::uint32_t index) {
  Op& op = ops_[index];
  if (op.commands != 0 || op.sent < op.end) return;
  IoDone done{op.io.cookie, 0, Code::ok, 0};
  const std::uint64_t good = std::min(op.good, op.end);
  if (good == 0 && !op.failure.ok()) {
    done.code = code_of(op.failure);
    done.system_error = number_of(op.failure);
  } else if (good == 0) {
    done.code = Code::cancelled;
  } else if (op.io.kind != IoKind::flush) {
    done.bytes = good;
  }
  done_.push_back(done);
  op.live = false;
  free_ops_.push_back(index);
}

void IoQueue::cancel(std::uint64_t cookie) {
  for (std::uint32_t index = 0; index < ops_.size(); ++index) {
    Op& op = ops_[index];
    if (!op.live || op.io.cookie != cookie) continue;
    send_no_more(index);
    end_if_complete(index);
    return;
  }
}

const IoQueue::CommandRecord* IoQueue::oldest() const {
  return sent_count_ == 0 ? nullptr : &commands_[sent_[sent_first_].record];
}

TimePoint IoQueue::next_deadline() {
  const CommandRecord* first = oldest();
  // A queue that is poisoned has nothing to wait for: whoever did that has raised the interrupt.
  return first == nullptr || pair().is_poisoned() ? TimePoint::max() : first->deadline;
}

void IoQueue::after_sleep() {
  std::uint64_t count = 0;
  if (interrupt_ && ::read(*interrupt_, &count, sizeof count) == sizeof count) return;
  const TimePoint now = Clock::now();
  if (live_ops_ == 0 || now < next_look_) return;
  next_look_ = now + look_period;
  controller_.check_alive();
}

}  // namespace penstock::nvme
