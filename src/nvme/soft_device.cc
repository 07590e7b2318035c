#include "nvme/soft_device.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>

namespace penstock::nvme {
namespace {

constexpr std::uint8_t stale_byte = 0xdb;  // what a fetched entry is overwritten with
constexpr std::uint32_t stale_word = 0xdbdbdbdb;
constexpr std::uint32_t rounds_before_sleep = 2000;
constexpr auto longest_sleep = std::chrono::seconds(1);
constexpr auto time_to_start = std::chrono::milliseconds(20);
// Of 500 ms. Its thread may have to wait for a processor.
constexpr std::uint32_t ready_timeout_units = 60;
constexpr std::uint32_t version_1_4 = 0x00010400;
constexpr std::size_t soft_page = 4096;

std::size_t registers_size(const SoftShape& shape) {
  const std::size_t end = head_doorbell(shape.io_queues, 4U << shape.doorbell_stride) + sizeof(std::uint32_t);
  return (end + soft_page - 1) / soft_page * soft_page;
}

std::uint64_t capabilities(const SoftShape& shape) {
  constexpr std::uint64_t contiguous = 1 << 16;
  constexpr std::uint64_t nvm_commands = std::uint64_t{1} << 37;
  return (shape.max_queue_entries - 1) | contiguous | std::uint64_t{ready_timeout_units} << 24 |
         std::uint64_t{shape.doorbell_stride} << 32 | nvm_commands;
}

}  // namespace

SoftDevice::SoftDevice(std::unique_ptr<BlockBackend> backend, SoftShape shape, SoftFaults faults)
    : shape_(std::move(shape)),
      faults_(std::move(faults)),
      backend_(std::move(backend)),
      stride_bytes_(4U << shape_.doorbell_stride),
      registers_bytes_(registers_size(shape_)),
      registers_(static_cast<std::byte*>(std::aligned_alloc(soft_page, registers_bytes_)), std::free),
      submission_queues_(shape_.io_queues + 1U),
      completion_queues_(shape_.io_queues + 1U) {
  std::memset(registers_.get(), 0, registers_bytes_);
  const std::uint64_t cap = capabilities(shape_);
  store(reg::cap, static_cast<std::uint32_t>(cap));
  store(reg::cap + 4, static_cast<std::uint32_t>(cap >> 32));
  store(reg::vs, version_1_4);
  if (faults_.starting_at_first) {
    configuration_ = cc::enable | cc::entry_sizes;
    store(reg::cc, configuration_);
    starts_until_ = Clock::now() + time_to_start;
  }
  for (std::uint32_t i = 0; i < interrupts(); ++i) interrupts_.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

std::uint64_t SoftDevice::map(std::byte* data, std::size_t size_bytes) {
  backend_->add_memory(data, size_bytes);
  return iommu_.map(data, size_bytes);
}

void SoftDevice::unmap(std::uint64_t address, std::size_t size_bytes) {
  if (std::byte* const data = iommu_.unmap(address, size_bytes)) backend_->remove_memory(data, size_bytes);
}

void SoftDevice::ask_to_stop() {
  stop_ = true;
  backend_->wake();
}

bool SoftDevice::has_ended(TimePoint deadline) {
  std::unique_lock lock(end_mutex_);
  return end_.wait_until(lock, deadline, [this] { return has_ended_; });
}

SoftCounters SoftDevice::counters() const {
  return {commands_, doorbells_, resets_, aborts_, deleted_queues_};
}

void SoftDevice::run() {
  work();
  const std::lock_guard lock(end_mutex_);
  has_ended_ = true;
  end_.notify_all();
}

void SoftDevice::work() {
  while (!stop_ || parts_in_flight_ > 0) {
    if (stop_) waiting_.clear();  // what was not begun is not begun any more
    if (starts_until_ != TimePoint{}) finish_starting();
    bool busy = !vanishing_ && look_at_configuration();
    if (running_ && !fatal_ && !stop_) {
      for (std::uint16_t i = 0; i < queues_in_use_; ++i) {
        if (completion_queues_[i].live) busy = note_head(i) || busy;
        if (submission_queues_[i].live) busy = fetch(i) || busy;
      }
    }
    busy = collect(TimePoint::min()) || busy;
    busy = (held_ > 0 && end_due()) || busy;
    busy = (!deletions_.empty() && end_deletes()) || busy;
    if (vanishing_ && !vanished_ && parts_in_flight_ == 0) vanish();
    raise_interrupts();
    if (busy) {
      idle_rounds_ = 0;
    } else {
      rest();
    }
  }
}

// Looks again for a moment, since a host that was answered often asks again; then sleeps until somebody rings.
void SoftDevice::rest() {
  if (parts_in_flight_ == 0 && ++idle_rounds_ < rounds_before_sleep) return;
  asleep_.store(true);
  store_before_load();
  if (!has_news()) {
    TimePoint until = starts_until_ != TimePoint{} ? starts_until_ : Clock::now() + longest_sleep;
    for (const auto& flight : flights_) {
      if (held_ > 0 && flight->live && flight->due != TimePoint{}) until = std::min(until, flight->due);
    }
    if (collect(until)) idle_rounds_ = 0;
  }
  asleep_.store(false);
}

bool SoftDevice::has_news() {
  if (stop_) return parts_in_flight_ == 0;
  if (vanishing_) return !vanished_ && parts_in_flight_ == 0;
  if (load(reg::cc) != configuration_) return true;
  if (!running_ || fatal_) return false;
  for (std::uint16_t i = 0; i < queues_in_use_; ++i) {
    if (submission_queues_[i].live && tail_of(i) != submission_queues_[i].head) return true;
    const CompletionQueue& queue = completion_queues_[i];
    if (queue.live && !queue.waiting.empty() && load(head_doorbell(i, stride_bytes_)) != queue.seen % queue.entries) {
      return true;
    }
  }
  return false;
}

bool SoftDevice::look_at_configuration() {
  const std::uint32_t now = load(reg::cc);
  if (now == configuration_) return false;
  const bool was_enabled = (configuration_ & cc::enable) != 0;
  const bool is_enabled = (now & cc::enable) != 0;
  if (is_enabled && !was_enabled) enable(now);
  if (!is_enabled && was_enabled && !try_disable()) return false;
  const std::uint32_t shutdown = now & cc::shutdown_mask;
  if (shutdown != 0 && shutdown != (configuration_ & cc::shutdown_mask)) {
    store(reg::csts, (load(reg::csts) & ~csts::shutdown_mask) | csts::shutdown_complete);
  }
  configuration_ = now;
  return true;
}

void SoftDevice::enable(std::uint32_t configuration) {
  if ((configuration & (0xfU << 16 | 0xfU << 20)) != cc::entry_sizes) breaches_.add("CC: entries of 64 and 16 bytes");
  page_bytes_ = cc::page_bytes(configuration);
  if (page_bytes_ != soft_page) breaches_.add("CC: a page size that CAP does not allow");
  const Registers all = registers();
  const std::uint32_t sizes = load(reg::aqa);
  const std::uint32_t entries[] = {(sizes & 0xfff) + 1, (sizes >> 16 & 0xfff) + 1};
  const std::uint64_t bases[] = {all.read64(reg::asq), all.read64(reg::acq)};
  const std::size_t bytes[] = {entries[0] * sizeof(Command), entries[1] * sizeof(Completion)};
  if ((bases[0] | bases[1]) % soft_page != 0) breaches_.add("ASQ, ACQ: not at the start of a page");
  std::byte* const submissions = iommu_.use(bases[0], bytes[0]);
  std::byte* const completions = iommu_.use(bases[1], bytes[1]);
  if (submissions == nullptr || completions == nullptr || entries[0] < 2 || entries[1] < 2) {
    breaches_.add("ASQ, ACQ: not mapped, or too small");
    fatal_ = true;
    store(reg::csts, csts::fatal);
    return;
  }
  for (std::uint32_t at = reg::doorbells; at + 4 <= registers_bytes_; at += 4) store(at, 0);
  std::memset(submissions, stale_byte, bytes[0]);
  submission_queues_[0] = {
      true, 0, entries[0], 0, bases[0], reinterpret_cast<Command*>(submissions), 0, std::vector<bool>(1 << 16)};
  completion_queues_[0] = {};
  completion_queues_[0].live = true;
  completion_queues_[0].entries = entries[1];
  completion_queues_[0].address = bases[1];
  completion_queues_[0].memory = reinterpret_cast<Completion*>(completions);
  running_ = true;
  if (faults_.never_ready) return;
  fatal_ = fatal_starts_ < faults_.fatal_starts;
  if (fatal_) ++fatal_starts_;
  store(reg::csts, csts::ready | (fatal_ ? csts::fatal : 0));
}

// Of a controller that was enabled before the host came: it has no queues that the host knows of.
void SoftDevice::finish_starting() {
  if (load(reg::cc) != configuration_) breaches_.add("CC: a controller was reset while it was starting");
  if (load(reg::cc) == configuration_ && Clock::now() < starts_until_) return;
  starts_until_ = {};
  store(reg::csts, csts::ready);
}

// False while the backend is still at work: nothing may touch the host's memory once the controller is not ready.
bool SoftDevice::try_disable() {
  running_ = false;
  if (faults_.ignores_disable) return true;
  waiting_.clear();
  if (parts_in_flight_ > 0) return false;
  forget_everything();
  ++resets_;
  store(reg::csts, 0);
  return true;
}

void SoftDevice::forget_everything() {
  for (const auto& flight : flights_) {
    if (flight->live) drop(*flight);
  }
  deletions_.clear();
  for (SubmissionQueue& queue : submission_queues_) {
    if (queue.live) iommu_.release(queue.address);
    queue = {};
  }
  for (CompletionQueue& queue : completion_queues_) {
    if (queue.live) iommu_.release(queue.address);
    queue = {};
  }
  queues_in_use_ = 1;
  fatal_ = false;
}

void SoftDevice::vanish() {
  forget_everything();
  vanished_ = true;
  for (std::uint32_t at = 0; at < registers_bytes_; at += 4) store(at, all_ones);
}

bool SoftDevice::fetch(std::uint16_t id) {
  SubmissionQueue& queue = submission_queues_[id];
  const std::uint32_t tail = tail_of(id);
  if (tail == queue.head) return false;
  if (tail >= queue.entries) {
    breaches_.add("a doorbell of queue " + std::to_string(id) + " out of range: " + std::to_string(tail));
    fatal_ = true;
    store(reg::csts, load(reg::csts) | csts::fatal);
    return false;
  }
  if (id != 0) count(doorbells_);
  while (queue.live && queue.head != tail && running_ && !fatal_) {
    Command& entry = queue.memory[queue.head];
    const Command command = entry;
    std::memset(static_cast<void*>(&entry), stale_byte, sizeof entry);
    queue.head = (queue.head + 1) % queue.entries;
    if (command.nsid == stale_word && command.dw15 == stale_word) {
      breaches_.add("an entry of queue " + std::to_string(id) + " was fetched before it was written");
      continue;
    }
    if (queue.busy[command.cid]) {
      breaches_.add("a command identifier of queue " + std::to_string(id) + " is used twice");
      continue;
    }
    start(id, command);
  }
  return true;
}

void SoftDevice::start(std::uint16_t id, const Command& command) {
  if (command.flags != 0) breaches_.add("a command is fused, or uses SGLs");
  if (id == 0) {
    start_admin(command);
    return;
  }
  const std::uint64_t number = count(commands_);
  if (faults_.vanish_after != 0 && number > faults_.vanish_after) {
    running_ = false;
    vanishing_ = true;
    waiting_.clear();
    return;
  }
  if (faults_.fatal_after != 0 && number > faults_.fatal_after && !fatal_spent_) {
    fatal_ = fatal_spent_ = true;
    store(reg::csts, load(reg::csts) | csts::fatal);
  }
  start_io(id, command);
}

SoftDevice::Flight& SoftDevice::new_flight(std::uint16_t queue, std::uint16_t cid) {
  if (free_flights_.empty()) {
    free_flights_.push_back(static_cast<std::uint32_t>(flights_.size()));
    flights_.push_back(std::make_unique<Flight>());
    flights_.back()->index = free_flights_.back();
  }
  Flight& flight = *flights_[free_flights_.back()];
  free_flights_.pop_back();
  flight.posting = {queue, cid, status::success, 0, false, {}};
  flight.parts = 0;
  flight.live = true;
  flight.due = {};
  flight.number = queue == 0 ? 0 : commands_.load(std::memory_order_relaxed);
  flight.used.clear();
  SubmissionQueue& submissions = submission_queues_[queue];
  submissions.busy[cid] = true;
  ++submissions.in_flight;
  return flight;
}

bool SoftDevice::collect(TimePoint deadline) {
  if (parts_in_flight_ == 0 && deadline == TimePoint::min()) return false;
  std::array<BlockDone, 64> done;
  const std::size_t count = backend_->poll(done, deadline);
  for (std::size_t i = 0; i < count; ++i) {
    --parts_in_flight_;
    end_part(*flights_[done[i].cookie], done[i].ok);
  }
  return (!waiting_.empty() && send_waiting()) || count > 0;
}

bool SoftDevice::send_waiting() {
  bool sent = false;
  while (!waiting_.empty() && backend_->submit(waiting_.front())) {
    waiting_.pop_front();
    ++parts_in_flight_;
    sent = true;
  }
  return sent;
}

void SoftDevice::end_part(Flight& flight, bool ok) {
  if (!ok) {
    flight.posting.status = status::internal_error;
  }
  if (--flight.parts == 0) finish(flight);
}

// Carried out: now its completion is posted, unless something goes wrong with that.
void SoftDevice::finish(Flight& flight) {
  if (!running_ || fatal_) return;  // it ends with the reset
  if (happens(Chance::lose, faults_.lose, flight)) return;
  const bool delayed = happens(Chance::delay, faults_.delay, flight);
  if (delayed || happens(Chance::shuffle, faults_.shuffle, flight)) {
    const auto most = static_cast<std::uint64_t>(faults_.max_delay.count()) / (delayed ? 1 : 10) + 1;
    flight.due = Clock::now() + std::chrono::microseconds(random(Chance::delay, flight.number) % most);
    ++held_;
    return;
  }
  end(flight);
}

bool SoftDevice::end_due() {
  const TimePoint now = Clock::now();
  bool ended = false;
  for (std::size_t i = 0; i < flights_.size(); ++i) {
    Flight& flight = *flights_[i];
    if (!flight.live || flight.due == TimePoint{} || flight.due > now) continue;
    end(flight);
    ended = true;
  }
  return ended;
}

void SoftDevice::end(Flight& flight) {
  const Posting posting = flight.posting;
  const bool twice = happens(Chance::duplicate, faults_.duplicate, flight);
  const bool another = happens(Chance::unknown, faults_.unknown, flight);
  const auto cid = static_cast<std::uint16_t>(another ? random(Chance::unknown, flight.number) >> 32 : 0);
  drop(flight);  // first: once the host knows, it may reuse everything
  post(posting);
  if (twice) post(posting);
  if (another) post({posting.queue, cid, status::success, 0, true, {}});
}

void SoftDevice::drop(Flight& flight) {
  for (const std::uint64_t address : flight.used) iommu_.release(address);
  if (flight.due != TimePoint{}) --held_;
  flight.live = false;
  SubmissionQueue& queue = submission_queues_[flight.posting.queue];
  queue.busy[flight.posting.cid] = false;
  --queue.in_flight;
  free_flights_.push_back(flight.index);
}

void SoftDevice::post(const Posting& posting) {
  CompletionQueue& queue = completion_queues_[submission_queues_[posting.queue].completion_queue];
  if (queue.waiting.empty() && queue.has_room()) {
    write_completion(queue, posting);
  } else {
    queue.waiting.push_back(posting);
  }
}

bool SoftDevice::post_waiting(CompletionQueue& queue) {
  bool posted = false;
  for (; !queue.waiting.empty() && queue.has_room(); posted = true) {
    write_completion(queue, queue.waiting.front());
    queue.waiting.pop_front();
  }
  return posted;
}

void SoftDevice::write_completion(CompletionQueue& queue, const Posting& posting) {
  const SubmissionQueue& submissions = submission_queues_[posting.queue];
  // It may have waited for room, and be true by now.
  if (posting.made_up && (!submissions.live || submissions.busy[posting.cid])) return;
  Completion& entry = queue.memory[queue.posted % queue.entries];
  const bool phase = (queue.posted / queue.entries & 1) == 0;
  entry.result = posting.result;
  entry.reserved = 0;
  entry.submission = posting.old_head.value_or(submissions.head) | std::uint32_t{posting.queue} << 16;
  __atomic_store_n(&entry.status, Completion::pack(posting.cid, phase, posting.status), __ATOMIC_RELEASE);
  ++queue.posted;
  queue.has_news = true;
}

// The host has seen more completions.
bool SoftDevice::note_head(std::uint16_t id) {
  CompletionQueue& queue = completion_queues_[id];
  const std::uint32_t head = load(head_doorbell(id, stride_bytes_));
  const auto known = static_cast<std::uint32_t>(queue.seen % queue.entries);
  if (head != known) {
    const std::uint32_t more = (head + queue.entries - known) % queue.entries;
    if (head >= queue.entries || more > queue.posted - queue.seen) {
      breaches_.add("the head doorbell of queue " + std::to_string(id) + " passes what was posted");
      return false;
    }
    queue.seen += more;
  }
  return !queue.waiting.empty() && post_waiting(queue);
}

void SoftDevice::raise_interrupts() {
  for (CompletionQueue& queue : std::span(completion_queues_).first(queues_in_use_)) {
    if (!std::exchange(queue.has_news, false) || !queue.interrupt) continue;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(interrupts_[queue.vector].get(), &one, sizeof one);
  }
}

// Mixes all bits of the seed, the command and the question, so that neighbours have nothing in common (splitmix64).
std::uint64_t SoftDevice::random(Chance chance, std::uint64_t command) const {
  std::uint64_t x = faults_.seed * 0x9e3779b97f4a7c15 + command * 8 + static_cast<std::uint64_t>(chance);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

bool SoftDevice::happens(Chance chance, std::uint32_t thousandths, const Flight& flight) const {
  return thousandths != 0 && flight.posting.queue != 0 && random(chance, flight.number) % 1000 < thousandths;
}

}  // namespace penstock::nvme
