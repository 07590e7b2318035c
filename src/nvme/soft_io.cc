// The soft controller's I/O commands (NVM Command Set 1.0 §3), and how it follows PRPs.
#include <algorithm>
#include <cstring>

#include "nvme/soft_device.h"

namespace penstock::nvme {
namespace {

std::uint64_t first_block(const Command& command) {
  return command.dw10 | std::uint64_t{command.dw11} << 32;
}
std::uint64_t block_count(const Command& command) {
  return (command.dw12 & 0xffff) + std::uint64_t{1};
}

}  // namespace

void SoftDevice::start_io(std::uint16_t queue, const Command& command) {
  Flight& flight = new_flight(queue, command.cid);
  if (happens(Chance::unfetched, faults_.unfetched, flight)) {
    post({queue, static_cast<std::uint16_t>(command.cid + 1), status::unrecovered_read, 0, true, {}});
  }
  if (happens(Chance::old_head, faults_.old_head, flight)) flight.posting.old_head = submission_queues_[queue].head;
  // Parts that end at once must not end the command before the last was begun.
  flight.parts = 1;
  StatusField& status = flight.posting.status;
  if (!faults_.statuses.empty() && happens(Chance::fail, faults_.fail, flight)) {
    status = faults_.statuses[(random(Chance::fail, flight.number) >> 32) % faults_.statuses.size()];
  } else {
    switch (static_cast<IoOpcode>(command.opcode)) {
      case IoOpcode::flush:
        status = check_io(command, 0);
        if (status.ok()) start_part(flight, {.kind = BlockKind::flush});
        break;
      case IoOpcode::read:
      case IoOpcode::write:
      case IoOpcode::write_zeroes:
        status = start_transfer(command, flight);
        break;
      case IoOpcode::dataset:
        status = start_deallocate(command, flight);
        break;
      default:
        status = status::invalid_opcode;
    }
  }
  if (--flight.parts == 0) finish(flight);
}

StatusField SoftDevice::check_io(const Command& command, std::uint64_t blocks) {
  const bool flushes_all = blocks == 0 && command.nsid == all_namespaces;
  if (command.nsid != 1 && !flushes_all) return status::invalid_namespace;
  if (blocks == 0) return status::success;
  const std::uint64_t size = backend_->size_bytes() / shape_.block_bytes;
  const std::uint64_t first = first_block(command);
  return first < size && blocks <= size - first ? status::success : status::lba_out_of_range;
}

StatusField SoftDevice::start_transfer(const Command& command, Flight& flight) {
  if (const StatusField bad = check_io(command, block_count(command)); !bad.ok()) return bad;
  const std::uint64_t offset = first_block(command) * shape_.block_bytes;
  const std::uint64_t length = block_count(command) * shape_.block_bytes;
  if (static_cast<IoOpcode>(command.opcode) == IoOpcode::write_zeroes) {
    if (!shape_.write_zeroes) return status::invalid_opcode;
    if (shape_.zeroes_exponent != 0 && length > page_bytes_ << shape_.zeroes_exponent) {
      breaches_.add("more zeroes than WZSL allows");
      return status::invalid_field;
    }
    start_part(flight, {.kind = BlockKind::zero, .offset = offset, .length = length});
    return status::success;
  }
  if (shape_.mdts != 0 && length > page_bytes_ << shape_.mdts) {
    breaches_.add("a transfer longer than MDTS allows");
    return status::invalid_field;
  }
  segments_.clear();
  if (const StatusField bad = walk_prps(command, length, flight); !bad.ok()) return bad;
  const bool reads = static_cast<IoOpcode>(command.opcode) == IoOpcode::read;
  std::uint64_t done = 0;
  for (const Segment& segment : segments_) {
    start_part(flight, {.kind = reads ? BlockKind::read : BlockKind::write,
                        .offset = offset + done,
                        .length = segment.length,
                        .memory = segment.memory});
    done += segment.length;
  }
  return status::success;
}

StatusField SoftDevice::start_deallocate(const Command& command, Flight& flight) {
  if (!shape_.deallocate) return status::invalid_opcode;
  if (command.nsid != 1) return status::invalid_namespace;
  const std::uint64_t count = (command.dw10 & 0xff) + std::uint64_t{1};
  segments_.clear();
  if (const StatusField bad = walk_prps(command, count * sizeof(DatasetRange), flight); !bad.ok()) return bad;
  std::vector<DatasetRange> ranges(count);
  auto* to = reinterpret_cast<std::byte*>(ranges.data());
  for (const Segment& segment : segments_) {
    std::memcpy(to, segment.memory, segment.length);
    to += segment.length;
  }
  const std::uint64_t size = backend_->size_bytes() / shape_.block_bytes;
  for (const DatasetRange& range : ranges) {
    if (range.first >= size || range.blocks > size - range.first) return status::lba_out_of_range;
    if (shape_.deallocate_blocks != 0 && range.blocks > shape_.deallocate_blocks) {
      breaches_.add("a range to deallocate that is longer than DMRSL allows");
      return status::invalid_field;
    }
  }
  for (const DatasetRange& range : ranges) {
    if ((command.dw11 & dataset_deallocate) == 0 || range.blocks == 0) continue;
    start_part(flight, {.kind = BlockKind::deallocate,
                        .offset = range.first * shape_.block_bytes,
                        .length = std::uint64_t{range.blocks} * shape_.block_bytes});
  }
  return status::success;
}

void SoftDevice::start_part(Flight& flight, const BlockOp& op) {
  BlockOp part = op;
  part.cookie = flight.index;
  ++flight.parts;
  if (waiting_.empty() && backend_->submit(part)) {
    ++parts_in_flight_;
  } else {
    waiting_.push_back(part);
  }
}

StatusField SoftDevice::add_segment(std::uint64_t address, std::uint64_t length, Flight& flight) {
  std::byte* const memory = iommu_.use(address, length);
  if (memory == nullptr) {
    breaches_.add("a PRP names memory that is not mapped");
    return status::data_transfer_error;
  }
  flight.used.push_back(address);
  if (!segments_.empty() && segments_.back().memory + segments_.back().length == memory) {
    segments_.back().length += length;
  } else {
    segments_.push_back({memory, length});
  }
  return status::success;
}

StatusField SoftDevice::walk_prps(const Command& command, std::uint64_t length, Flight& flight) {
  const auto breach = [this](const char* what) {
    breaches_.add(what);
    return status::invalid_prp_offset;
  };
  if (command.prp1 % 4 != 0) return breach("PRP1 is not aligned to 4 bytes");
  const std::uint64_t in_first = std::min(length, page_bytes_ - command.prp1 % page_bytes_);
  if (const StatusField bad = add_segment(command.prp1, in_first, flight); !bad.ok()) return bad;
  std::uint64_t left = length - in_first;
  if (left == 0) return status::success;
  if (left <= page_bytes_) {
    if (command.prp2 % page_bytes_ != 0) return breach("PRP2 has an offset");
    return add_segment(command.prp2, left, flight);
  }
  if (command.prp2 % 8 != 0) return breach("a PRP list that is not aligned to 8 bytes");
  std::uint64_t at = command.prp2;
  while (left > 0) {
    // What is left of the list in this page, at a time.
    const std::uint64_t room = (page_bytes_ - at % page_bytes_) / 8;
    const std::uint64_t needed = (left + page_bytes_ - 1) / page_bytes_;
    const std::uint64_t count = std::min(room, needed);
    const auto* entries = reinterpret_cast<const std::uint64_t*>(iommu_.use(at, count * 8));
    if (entries == nullptr) return breach("a PRP list in memory that is not mapped");
    flight.used.push_back(at);
    const bool chains = needed > room;
    const std::uint64_t pages = count - (chains ? 1 : 0);
    for (std::uint64_t i = 0; i < pages;) {
      if (entries[i] % page_bytes_ != 0) return breach("an entry of a PRP list has an offset");
      // Pages that follow one another are looked up as one.
      std::uint64_t run = 1;
      while (i + run < pages && entries[i + run] == entries[i] + run * page_bytes_) ++run;
      const std::uint64_t part = std::min(left, run * page_bytes_);
      if (const StatusField bad = add_segment(entries[i], part, flight); !bad.ok()) return bad;
      left -= part;
      i += run;
    }
    if (chains) at = entries[count - 1];
    if (chains && at % page_bytes_ != 0) return breach("a PRP list goes on in the middle of a page");
  }
  return status::success;
}

}  // namespace penstock::nvme
