#include "services/gpu_queues/batch.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "services/rows/round_up.h"

namespace penstock::gpu_queues {
namespace {

constexpr std::uint64_t stretch_limit_bytes = 1 << 20;
constexpr std::uint64_t gap_limit_bytes = 4096;  // reading so much more is cheaper than another operation
constexpr std::uint64_t batch_alignment = 4096;

nvme::StatusField status_of(Code code, bool writes) {
  switch (code) {
    case Code::out_of_range:
    case Code::truncated:
      return nvme::status::lba_out_of_range;
    case Code::read_only:
    case Code::permission_denied:
      return nvme::status::write_protected;
    case Code::no_space:
      return nvme::status::capacity_exceeded;
    case Code::timed_out:
    case Code::cancelled:
    case Code::abandoned:
      return nvme::status::abort_requested;
    case Code::closed:
      return nvme::status::namespace_not_ready;
    case Code::io_error:
      return writes ? nvme::status::write_fault : nvme::status::unrecovered_read;
    default:
      return nvme::status::internal_error;
  }
}

}  // namespace

std::size_t Batch::choose(std::span<Transfer> transfers) {
  // What is read is joined with its neighbours, in the order of the store.
  std::ranges::sort(transfers, {}, [](const Transfer& t) { return std::tuple(t.writes, t.source, t.offset); });
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  while (count < std::min(transfers.size(), transfers_limit) && transfers[count].writes == transfers[0].writes) {
    bytes += transfers[count].bytes;
    if (count > 0 && bytes > bytes_limit) break;
    ++count;
  }
  return count;
}

Batch::Batch(const Context& context, std::shared_ptr<Set> set, std::uint32_t queue, std::span<const Transfer> transfers)
    : set_(std::move(set)), queue_(queue), transfers_(transfers.begin(), transfers.end()) {
  plan();
  if (Status status = begin(context); !status) fail(status.error());
}

void Batch::plan() {
  for (const Transfer& transfer : transfers_) {
    const StoreInfo& info = transfer.source->store().info();
    const std::uint64_t block =
        info.direct && !transfer.writes ? std::max<std::uint64_t>(info.alignments.offset, 1) : 1;
    const std::uint64_t begin = transfer.offset / block * block;
    const std::uint64_t end =
        std::max(transfer.offset + transfer.bytes,
                 std::min(rows::round_up(transfer.offset + transfer.bytes, block), info.size_bytes));
    if (!stretches_.empty() && !transfer.writes) {
      Stretch& last = stretches_.back();
      const std::uint64_t last_end = last.offset + last.bytes;
      const bool is_near = transfer.source == last.source && begin <= last_end + gap_limit_bytes;
      if (is_near && (end <= last_end || end - last.offset <= stretch_limit_bytes)) {
        last.bytes = std::max(last_end, end) - last.offset;
        stretch_of_.push_back(stretches_.size() - 1);
        continue;
      }
    }
    stretches_.push_back({transfer.source, begin, end - begin, 0});
    stretch_of_.push_back(stretches_.size() - 1);
  }
}

Status Batch::begin(const Context& context) {
  std::uint64_t bytes = 0;
  for (Stretch& stretch : stretches_) {
    stretch.memory_offset = bytes;
    bytes = rows::round_up(bytes + stretch.bytes, batch_alignment);
  }
  auto memory = context.allocate(Domain::host(), bytes);
  if (!memory) return std::move(memory).error();
  memory_ = std::move(*memory);
  const bool writes = transfers_.front().writes;
  for (std::size_t i = 0; writes && i < transfers_.size(); ++i) {
    std::memcpy(bytes_of(transfers_[i], stretches_[stretch_of_[i]]), transfers_[i].place, transfers_[i].bytes);
  }
  std::vector<Range> ranges;
  ranges.reserve(stretches_.size());
  for (const Stretch& stretch : stretches_) {
    ranges.push_back(
        {&stretch.source->store(), stretch.offset, memory_.region().part(stretch.memory_offset, stretch.bytes)});
  }
  // With a callback, so that it goes on by itself.
  const RequestOptions options{.deadline_seconds = std::max(set_->options().timeout_seconds, 1e-9),
                               .on_end = [](const Report&) {}};
  auto ticket = context.submit(writes ? Direction::write : Direction::read, ranges, options);
  if (!ticket) return std::move(ticket).error();
  ticket_ = std::move(*ticket);
  return {};
}

void Batch::fail(const Error& error) {
  failure_ = status_of(error.code, transfers_.front().writes);
  set_->note_error(error);
  for (Transfer& transfer : transfers_) transfer.ok = false;
}

std::span<const Transfer> Batch::finish() {
  if (!ticket_) return transfers_;
  if (ticket_.outcome() != Outcome::done) {
    const Report report = ticket_.report();
    const Error& error = *report.error;
    failure_ = status_of(error.code, transfers_.front().writes);
    set_->note_error(error);
    // Where it was stopped early, or not all failures are known, nothing is vouched for.
    const bool is_known =
        report.outcome == Outcome::failed && !report.failures.empty() && report.failure_count == report.failures.size();
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      const auto failed = [&](const Failure& failure) { return failure.range == stretch_of_[i]; };
      transfers_[i].ok = is_known && std::ranges::none_of(report.failures, failed);
    }
  }
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    if (!transfer.ok || transfer.writes) continue;
    std::memcpy(transfer.place, bytes_of(transfer, stretches_[stretch_of_[i]]), transfer.bytes);
  }
  return transfers_;
}

}  // namespace penstock::gpu_queues
