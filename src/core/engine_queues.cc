#include "core/engine_queues.h"

#include <algorithm>

#include "base/log.h"
#include "base/out_of_memory.h"

namespace penstock::core {

namespace {

// A queue may do its work inside poll: only time in which the thread did nothing was spent waiting.
class WaitWatch {
 public:
  explicit WaitWatch(LaneTrace* trace) : trace_(trace) {
    if (trace_ == nullptr) return;
    begun_ = Clock::now();
    cpu_seconds_ = thread_cpu_seconds();
  }
  ~WaitWatch() {
    if (trace_ == nullptr) return;
    const TimePoint now = Clock::now();
    const double worked = thread_cpu_seconds() - cpu_seconds_;
    if (worked * 2 < seconds_between(begun_, now)) trace_->add_wait(TraceKind::waits_for_storage, begun_, now);
  }
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

 private:
  LaneTrace* const trace_;
  TimePoint begun_;
  double cpu_seconds_ = 0;
};

}  // namespace

EngineQueues::EngineQueues(const engine::Table& engines, const engine::QueueOptions& options, Pieces& pieces,
                           Inbox& inbox, LaneTrace* trace)
    : engines_(engines),
      options_(options),
      pieces_(pieces),
      inbox_(inbox),
      trace_(trace),
      queues_(engines.size()),
      done_(done_at_once) {
  events_.reserve(engines.size() + 1);
}

Status EngineQueues::make(std::size_t engine) {
  One& one = queues_[engine];
  return or_out_of_memory([&]() -> Status {
    engine::Engine& maker = *engines_[engine];
    const bool can_inline = maker.description().inline_queue;
    engine::QueueOptions options = options_;
    options.run_inline = options.run_inline && can_inline;
    auto made = maker.make_queue(options);
    if (!made && can_inline && !options.run_inline) {
      log(LogLevel::warning, made.error().message + "; operations run one after another instead");
      options.run_inline = true;
      made = maker.make_queue(options);
    }
    if (!made) return std::move(made).error();
    one.batch.reserve(pieces_.size());
    one.queue = std::move(*made);
    return {};
  });
}

void EngineQueues::submit() {
  for (One& one : queues_) {
    if (one.batch.empty()) continue;
    const std::size_t taken = one.queue->submit(one.batch);
    for (const engine::Op& op : std::span(one.batch).first(taken)) {
      pieces_[Pieces::index_of(op.cookie)].where = Piece::Where::queue;
      bytes_in_flight_ += op.length;
    }
    one.in_flight += static_cast<std::uint32_t>(taken);
    in_flight_ += static_cast<std::uint32_t>(taken);
    one.batch.erase(one.batch.begin(), one.batch.begin() + static_cast<std::ptrdiff_t>(taken));
  }
}

bool EngineQueues::note_end(std::size_t engine, const engine::Done& done) {
  const auto index = pieces_.find(done.cookie);
  if (!index || pieces_[*index].where != Piece::Where::queue) {
    log(LogLevel::error, "an engine completed an operation that was not in flight; it is ignored");
    return false;
  }
  pieces_[*index].where = Piece::Where::here;
  bytes_in_flight_ -= pieces_[*index].op.length;
  --queues_[engine].in_flight;
  --in_flight_;
  return true;
}

// Also chooses which of them is slept in next, where there are no events: one after the other.
std::size_t EngineQueues::count_busy() {
  if (in_flight_ != 0 && queues_[last_busy_].in_flight == in_flight_) return 1;
  std::size_t busy = 0;
  std::size_t after = queues_.size();  // the first that is busy, behind the last
  std::size_t first = 0;
  for (std::size_t i = queues_.size(); i > 0; --i) {
    if (queues_[i - 1].in_flight == 0) continue;
    ++busy;
    first = i - 1;
    if (first > last_busy_) after = first;
  }
  if (busy != 0) last_busy_ = after != queues_.size() ? after : first;
  return busy;
}

std::size_t EngineQueues::poll_queue(std::size_t engine, TimePoint until) {
  const WaitWatch watch(trace_);
  return inbox_.poll(*queues_[engine].queue, done_, until);
}

std::optional<std::size_t> EngineQueues::sleep_on_all(TimePoint until) {
  events_.assign(1, {});
  for (One& one : queues_) {
    if (one.in_flight == 0) continue;
    const int event = one.queue->event();
    if (event < 0) return last_busy_;
    events_.push_back({event, POLLIN, 0});
  }
  const WaitWatch watch(trace_);
  if (!inbox_.sleep_on(events_, until)) return last_busy_;
  return std::nullopt;
}

void EngineQueues::clear() {
  inbox_.forget_queue();
  for (One& one : queues_) one.queue.reset();
}

}  // namespace penstock::core
