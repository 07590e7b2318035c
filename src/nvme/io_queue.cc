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
  page_bytes_ = info.page_bytes;
  max_transfer_bytes_ = info.max_transfer_bytes;
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
  batch_.resize(depth);
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

// Why an operation is not even begun.
inline std::optional<Code> IoQueue::refusal(const Io& io) const {
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

inline std::uint64_t IoQueue::longest_transfer(const Io& io) const {
  return std::min(max_transfer_bytes_, most_blocks * io.space->info.block_bytes);
}

std::uint64_t IoQueue::longest_without_data(const Io& io) const {
  const ControllerInfo& controller = controller_.info_;
  const std::uint64_t block = io.space->info.block_bytes;
  if (io.kind == IoKind::flush) return 1;
  if (io.kind == IoKind::deallocate) return std::min(most_blocks_of_range, controller.max_deallocate_blocks) * block;
  if (!controller.write_zeroes) return longest_transfer(io);
  return std::max(block, std::min(most_blocks * block, controller.max_zeroes_bytes));
}

PrpListMemory IoQueue::list_of(std::uint32_t record) const {
  const std::size_t at = lists_at_ + record * list_bytes_;
  return {reinterpret_cast<std::uint64_t*>(memory_.data() + at), memory_.address() + at};
}

inline void IoQueue::make_command(const Op& op, std::uint32_t record, std::uint64_t length, Command& command) {
  command = {};
  command.nsid = op.io.space->info.id;
  if (op.io.kind == IoKind::flush) {
    command.opcode = static_cast<std::uint8_t>(IoOpcode::flush);
    return;
  }
  const std::uint64_t block = op.io.space->info.block_bytes;
  const std::uint64_t first = (op.io.offset + op.sent) / block;
  const std::uint64_t count = length / block;
  if (op.io.kind == IoKind::deallocate) {
    const PrpListMemory list = list_of(record);
    const DatasetRange range{0, static_cast<std::uint32_t>(count), first};
    std::memcpy(list.entries, &range, sizeof range);
    command.opcode = static_cast<std::uint8_t>(IoOpcode::dataset);
    command.prp1 = list.address;
    command.dw11 = dataset_deallocate;
    return;
  }
  command.set_first_block(first);
  command.dw12 = static_cast<std::uint32_t>(count - 1);
  if (op.io.kind == IoKind::zero && controller_.info_.write_zeroes) {
    command.opcode = static_cast<std::uint8_t>(IoOpcode::write_zeroes);
    return;
  }
  command.opcode = static_cast<std::uint8_t>(op.io.kind == IoKind::read ? IoOpcode::read : IoOpcode::write);
  const std::uint64_t address = op.io.address + op.sent;
  if (op.io.kind != IoKind::zero && (address & (page_bytes_ - 1)) + length <= page_bytes_) {
    command.prp1 = address;  // by far the most, when there are many
    return;
  }
  const PrpListMemory list = list_of(record);
  const Prps prps = op.io.kind == IoKind::zero
                        ? make_repeated_prps(memory_.address() + zeros_at_, length, page_bytes_, list)
                        : make_prps(address, length, page_bytes_, list);
  command.prp1 = prps.first;
  command.prp2 = prps.second;
}

// Whether all of it is cut; if not, there are no commands left for more.
[[gnu::always_inline]] inline bool IoQueue::cut(Op& op, std::uint32_t index) {
  const std::uint64_t longest = moves_bytes(op.io.kind) ? longest_transfer(op.io) : longest_without_data(op.io);
  while (op.sent < op.end) {
    if (free_commands_.empty()) return false;
    const std::uint32_t number = free_commands_.back();
    free_commands_.pop_back();
    CommandRecord& record = commands_[number];
    record.op = index;
    record.offset = op.sent;
    const std::uint64_t length = std::min(longest, op.end - op.sent);
    Submission& submission = batch_[batched_++];
    submission.token = &record;
    make_command(op, number, length, submission.command);
    ++op.commands;
    op.sent += length;
  }
  return true;
}

void IoQueue::cut_waiting() {
  std::size_t finished = 0;
  while (finished < to_send_.size() && cut(ops_[to_send_[finished]], to_send_[finished])) ++finished;
  to_send_.erase(to_send_.begin(), to_send_.begin() + static_cast<std::ptrdiff_t>(finished));
}

std::size_t IoQueue::submit(std::span<const Io> ios) {
  // What the caller has not taken back counts too.
  ios = ios.first(std::min(ios.size(), ops_.size() - live_ops_));
  live_ops_ += ios.size();
  for (const Io& io : ios) {
    if (const auto code = refusal(io)) {
      done_.push_back({io.cookie, 0, *code, 0});
      continue;
    }
    const std::uint32_t index = free_ops_.back();
    free_ops_.pop_back();
    Op& op = ops_[index];
    op.io = io;
    op.sent = 0;
    op.end = op.good = io.kind == IoKind::flush ? 1 : io.length;
    op.failure = {};
    op.live = true;
    if (!to_send_.empty() || !cut(op, index)) to_send_.push_back(index);
  }
  send();
  return ios.size();
}

void IoQueue::send() {
  if (batched_ == 0) return;
  const std::uint32_t taken = pair().try_submit(batch_.data(), batched_);
  if (taken == 0) return;
  sent_[next_sent_ & (sent_.size() - 1)] = {Clock::now() + controller_.options_.command_time, taken};
  const std::uint64_t number = ++next_sent_;
  for (const Submission& submission : std::span(batch_).first(taken)) {
    static_cast<CommandRecord*>(submission.token)->sent = number;
  }
  std::copy(batch_.begin() + taken, batch_.begin() + batched_, batch_.begin());
  batched_ -= taken;
}

std::size_t IoQueue::poll(std::span<IoDone> done) {
  if (pair().is_poisoned()) controller_.rejoin(*this);
  pair().drain();
  take_ended();
  cut_waiting();
  send();
  if (first_sent_ != next_sent_ && oldest_sent().deadline < Clock::now()) {
    const auto is_late = [this](const CommandRecord& record) { return record.sent == first_sent_ + 1; };
    controller_.recover(*this, *std::find_if(commands_.begin(), commands_.end(), is_late));
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
    if (record->sent != 0) --sent_[(record->sent - 1) & (sent_.size() - 1)].left;
    record->sent = 0;
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
  while (first_sent_ != next_sent_ && oldest_sent().left == 0) ++first_sent_;
}

void IoQueue::send_no_more(std::uint32_t index) {
  ops_[index].end = ops_[index].sent;
  const auto place = std::find(to_send_.begin(), to_send_.end(), index);
  if (place != to_send_.end()) to_send_.erase(place);
}

// Of a controller that will never take another command.
void IoQueue::give_up() {
  const StatusField lost = make_status(status::generic, status::internal_error.code(), true);
  for (const Submission& submission : std::span(batch_).first(batched_)) {
    submission.token->state = Token::done_bit | lost.bits;
    platform_.completed(submission.token);
  }
  batched_ = 0;
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

TimePoint IoQueue::next_deadline() {
  // A queue that is poisoned has nothing to wait for: whoever did that has raised the interrupt.
  return first_sent_ == next_sent_ || pair().is_poisoned() ? TimePoint::max() : oldest_sent().deadline;
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
