// The soft controller's admin commands (NVMe 2.0 §5).
#include <algorithm>
#include <cstring>

#include "nvme/soft_device.h"

namespace penstock::nvme {
namespace {

void put_text(char* field, std::size_t size, const std::string& text) {
  std::memset(field, ' ', size);
  std::copy_n(text.begin(), std::min(size, text.size()), field);
}

std::uint8_t exponent_of(std::uint32_t power_of_two) {
  std::uint8_t exponent = 0;
  while (1U << exponent < power_of_two) ++exponent;
  return exponent;
}

}  // namespace

void SoftDevice::start_admin(const Command& command) {
  Flight& flight = new_flight(0, command.cid);
  StatusField& status = flight.posting.status;
  switch (static_cast<AdminOpcode>(command.opcode)) {
    case AdminOpcode::identify:
      status = identify(command, flight);
      break;
    case AdminOpcode::create_completion_queue:
      status = create_completion_queue(command, flight);
      break;
    case AdminOpcode::create_submission_queue:
      status = create_submission_queue(command, flight);
      break;
    case AdminOpcode::delete_completion_queue:
      if (faults_.ignores_delete) return;
      status = delete_completion_queue(command);
      break;
    case AdminOpcode::delete_submission_queue:
      if (faults_.ignores_delete || start_delete(command, flight)) return;
      break;
    case AdminOpcode::set_features:
    case AdminOpcode::get_features:
      status = features(command, flight);
      break;
    case AdminOpcode::get_log_page:
      status = get_log(command, flight);
      break;
    case AdminOpcode::abort:
      flight.posting.result = abort(command);
      break;
    case AdminOpcode::asynchronous_event:
      return;  // there is never an event
    default:
      status = status::invalid_opcode;
  }
  end(flight);
}

StatusField SoftDevice::identify(const Command& command, Flight& flight) {
  const std::uint32_t cns = command.dw10 & 0xff;
  segments_.clear();
  if (const StatusField bad = walk_prps(command, identify_bytes, flight); !bad.ok()) return bad;
  alignas(8) std::byte data[identify_bytes] = {};
  if (cns == identify_controller) {
    auto& self = *reinterpret_cast<IdentifyController*>(data);
    put_text(self.serial, sizeof self.serial, shape_.serial);
    put_text(self.model, sizeof self.model, "Penstock soft controller");
    put_text(self.firmware, sizeof self.firmware, "1");
    self.mdts = shape_.mdts;
    self.version = load(reg::vs);
    self.submission_entry_sizes = 0x66;
    self.completion_entry_sizes = 0x44;
    self.namespace_count = 1;
    self.optional_commands = static_cast<std::uint16_t>((shape_.deallocate ? 4 : 0) | (shape_.write_zeroes ? 8 : 0));
    self.volatile_write_cache = 1;
  } else if (cns == identify_namespace) {
    if (command.nsid != 1) return status::invalid_namespace;
    auto& space = *reinterpret_cast<IdentifyNamespace*>(data);
    space.size_blocks = space.capacity_blocks = space.used_blocks = backend_->size_bytes() / shape_.block_bytes;
    space.formats[0].block_exponent = exponent_of(shape_.block_bytes);
  } else if (cns == identify_active_namespaces) {
    const std::uint32_t only = 1;
    if (command.nsid == 0) std::memcpy(data, &only, sizeof only);
  } else if (cns == identify_command_set) {
    auto& limits = *reinterpret_cast<IdentifyCommandSet*>(data);
    limits.write_zeroes = shape_.zeroes_exponent;
    limits.dataset_range_blocks = shape_.deallocate_blocks;
  } else {
    return status::invalid_field;
  }
  if (faults_.untold_namespaces && cns == identify_namespace) return status::success;
  if (shape_.alter_identify) shape_.alter_identify(cns, data);
  const std::byte* from = data;
  for (const Segment& segment : segments_) {
    std::memcpy(segment.memory, from, segment.length);
    from += segment.length;
  }
  return status::success;
}

StatusField SoftDevice::get_log(const Command& command, Flight& flight) {
  const std::uint64_t length = 4 * (std::uint64_t{command.dw10 >> 16} + 1);
  segments_.clear();
  if (const StatusField bad = walk_prps(command, length, flight); !bad.ok()) return bad;
  for (const Segment& segment : segments_) std::memset(segment.memory, 0, segment.length);
  return status::success;
}

StatusField SoftDevice::features(const Command& command, Flight& flight) {
  if ((command.dw10 & 0xff) != feature_number_of_queues) return status::invalid_field;
  const std::uint32_t granted = shape_.io_queues - 1U;
  flight.posting.result = granted << 16 | granted;
  return status::success;
}

// The memory of a new queue, which must be contiguous (CAP.CQR).
std::byte* SoftDevice::queue_memory(const Command& command, std::uint64_t bytes, StatusField& status) {
  const bool contiguous = (command.dw11 & 1) != 0;
  if (!contiguous || command.prp1 % page_bytes_ != 0) {
    breaches_.add("a queue that is not contiguous, or not at the start of a page");
    status = status::invalid_field;
    return nullptr;
  }
  std::byte* const memory = iommu_.use(command.prp1, bytes);
  if (memory == nullptr) {
    breaches_.add("a queue in memory that is not mapped");
    status = status::data_transfer_error;
  }
  return memory;
}

StatusField SoftDevice::create_completion_queue(const Command& command, Flight&) {
  const std::uint32_t id = command.dw10 & 0xffff;
  const std::uint32_t entries = (command.dw10 >> 16) + 1;
  const std::uint32_t vector = command.dw11 >> 16;
  const bool interrupt = (command.dw11 & 2) != 0;
  if (id == 0 || id >= completion_queues_.size() || completion_queues_[id].live) return status::invalid_queue;
  if (entries < 2 || entries > shape_.max_queue_entries) return status::invalid_queue_size;
  if (interrupt && vector >= interrupts_.size()) return status::invalid_field;
  StatusField status = status::success;
  std::byte* const memory = queue_memory(command, entries * sizeof(Completion), status);
  if (memory == nullptr) return status;
  if (std::any_of(memory, memory + entries * sizeof(Completion), [](std::byte b) { return b != std::byte{0}; })) {
    breaches_.add("a completion queue that is not zeroed");
  }
  CompletionQueue& queue = completion_queues_[id];
  queues_in_use_ = std::max(queues_in_use_, id + 1);
  queue = {};
  queue.live = true;
  queue.interrupt = interrupt;
  queue.vector = static_cast<std::uint16_t>(vector);
  queue.entries = entries;
  queue.address = command.prp1;
  queue.memory = reinterpret_cast<Completion*>(memory);
  store(head_doorbell(id, stride_bytes_), 0);
  return status::success;
}

StatusField SoftDevice::create_submission_queue(const Command& command, Flight&) {
  const std::uint32_t id = command.dw10 & 0xffff;
  const std::uint32_t entries = (command.dw10 >> 16) + 1;
  const std::uint32_t completions = command.dw11 >> 16;
  if (id == 0 || id >= submission_queues_.size() || submission_queues_[id].live) return status::invalid_queue;
  if (entries < 2 || entries > shape_.max_queue_entries) return status::invalid_queue_size;
  if (completions == 0 || completions >= completion_queues_.size() || !completion_queues_[completions].live) {
    return status::invalid_completion_queue;
  }
  if (refused_queues_ < faults_.refused_queues) {
    ++refused_queues_;
    return status::internal_error;
  }
  StatusField status = status::success;
  std::byte* const memory = queue_memory(command, entries * sizeof(Command), status);
  if (memory == nullptr) return status;
  std::memset(memory, 0xdb, entries * sizeof(Command));
  queues_in_use_ = std::max(queues_in_use_, id + 1);
  submission_queues_[id] = {true,         static_cast<std::uint16_t>(completions), entries, 0,
                            command.prp1, reinterpret_cast<Command*>(memory),      0,       std::vector<bool>(1 << 16)};
  store(tail_doorbell(id, stride_bytes_), 0);
  return status::success;
}

StatusField SoftDevice::delete_completion_queue(const Command& command) {
  const std::uint32_t id = command.dw10 & 0xffff;
  if (id == 0 || id >= completion_queues_.size() || !completion_queues_[id].live) return status::invalid_queue;
  for (const SubmissionQueue& queue : submission_queues_) {
    if (!queue.live || queue.completion_queue != id) continue;
    breaches_.add("a completion queue was deleted before its submission queue");
    return make_status(status::command_specific, 0x0c);
  }
  if (faults_.refuses_delete) return status::internal_error;
  iommu_.release(completion_queues_[id].address);
  completion_queues_[id] = {};
  return status::success;
}

// Whether it takes longer: a queue is deleted when none of its commands is at work any more.
bool SoftDevice::start_delete(const Command& command, Flight& flight) {
  const std::uint32_t id = command.dw10 & 0xffff;
  if (id == 0 || id >= submission_queues_.size() || !submission_queues_[id].live) {
    flight.posting.status = status::invalid_queue;
    return false;
  }
  deletions_.push_back({static_cast<std::uint16_t>(id), &flight});
  return true;
}

bool SoftDevice::end_deletes() {
  const auto at_work = [this](std::uint16_t queue) {
    return std::any_of(flights_.begin(), flights_.end(), [queue](const auto& flight) {
      return flight->live && flight->posting.queue == queue && flight->parts > 0;
    });
  };
  const auto first_left = std::partition(deletions_.begin(), deletions_.end(),
                                         [&](const Deletion& deletion) { return !at_work(deletion.queue); });
  const std::vector<Deletion> ready(deletions_.begin(), first_left);
  deletions_.erase(deletions_.begin(), first_left);
  for (const Deletion& deletion : ready) {
    for (const auto& flight : flights_) {
      if (flight->live && flight->posting.queue == deletion.queue) drop(*flight);
    }
    iommu_.release(submission_queues_[deletion.queue].address);
    submission_queues_[deletion.queue] = {};
    ++deleted_queues_;
    end(*deletion.flight);
  }
  return !ready.empty();
}

// Bit 0 of the result: not aborted.
std::uint32_t SoftDevice::abort(const Command& command) {
  ++aborts_;
  if (faults_.ignores_abort) return 1;
  const std::uint32_t queue = command.dw10 & 0xffff;
  const std::uint32_t cid = command.dw10 >> 16;
  for (const auto& flight : flights_) {
    const bool meant = flight->live && flight->posting.queue == queue && flight->posting.cid == cid;
    if (!meant || queue == 0 || flight->parts > 0) continue;
    flight->posting.status = status::abort_requested;
    const Posting posting = flight->posting;
    drop(*flight);
    post(posting);
    return 0;
  }
  return 1;
}

}  // namespace penstock::nvme
