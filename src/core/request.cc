#include "core/request.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/callback.h"
#include "base/futex.h"
#include "base/out_of_memory.h"
#include "core/cut.h"
#include "core/environment.h"
#include "core/lane.h"
#include "cuda/ranges.h"

namespace penstock::core {

namespace {

// The kernel starts to read no more at once, however much it is asked to.
constexpr std::uint64_t filled_at_once_bytes = 1 << 20;

// How soon a caller that waits takes over from one that stopped working.
constexpr Duration turn = std::chrono::milliseconds(1);

}  // namespace

// As long as what allocators keep at hand, with what std::make_shared puts before it.
static_assert(sizeof(Request) + 2 * sizeof(void*) <= 1032);

// As RequestOptions has them. All that calling them takes is made with the request: its end is told, whether there is
// memory then or not.
struct Request::Callbacks : CompletionThread::Action {
  // Shared with what an executor is given, which may be called at any time.
  struct OnEnd {
    std::function<void(const Report&)> call;
    std::shared_ptr<Request> request;  // set when it has ended

    void operator()() const { call_back("RequestOptions::on_end", call, request->report()); }
  };

  explicit Callbacks(const RequestOptions& options) : executor(options.executor), on_range(options.on_range) {
    if (!options.on_end) return;
    on_end = std::make_shared<OnEnd>(OnEnd{options.on_end, nullptr});
    if (executor) call = [told = on_end] { (*told)(); };
  }
  void run() override {
    if (executor) {
      call_back("RequestOptions::executor", executor, std::move(call));
    } else {
      (*on_end)();
    }
  }

  std::shared_ptr<OnEnd> on_end;  // null: nobody wants to know
  std::function<void(std::function<void()>)> executor;
  std::function<void()> call;  // for it
  std::function<void(std::uint64_t range, Code code)> on_range;
  std::function<void()> at_end;  // of an inner request
};

void Request::set_on_end(std::function<void()> call) {
  if (!callbacks_) callbacks_ = std::make_unique<Callbacks>(RequestOptions());
  callbacks_->at_end = std::move(call);
}

// Called when the request has ended.
struct Request::Waiting : CompletionThread::Action {
  explicit Waiting(std::function<void()> then) : call(std::move(then)) {}
  void run() override { call_back("Ticket::then", call); }

  std::function<void()> call;
  Waiting* next = nullptr;
};

Request::Request(Private, std::shared_ptr<Environment> environment) : environment_(std::move(environment)) {}

Result<std::shared_ptr<Request>> Request::create(const std::shared_ptr<Environment>& environment,
                                                 std::span<const Range> ranges, const RequestSettings& settings,
                                                 const RequestOptions& options) {
  auto request = begin(environment, settings, options);
  if (auto status = request->take(ranges); !status) return status.error();
  return request;
}

std::shared_ptr<Request> Request::create_late(const std::shared_ptr<Environment>& environment, Domain domain,
                                              RangeSource ranges, const RequestSettings& settings,
                                              const RequestOptions& options) {
  auto request = begin(environment, settings, options);
  request->rare().late = std::make_unique<Late>(Late{std::move(ranges), domain});
  request->parts.resize(settings.lanes);
  request->parts_left_.store(settings.lanes, std::memory_order_relaxed);
  return request;
}

Status Request::check_domain(std::span<const Range> ranges, Domain domain) {
  const auto is_elsewhere = [&](const Range& range) { return range.memory.domain != domain; };
  if (std::none_of(ranges.begin(), ranges.end(), is_elsewhere)) return {};
  return Error{Code::invalid_argument, 0, "the memory is not on " + domain.name(),
               "all memory must be on the stream's device"};
}

void Request::ask_for_ranges() {
  if (!asks_for_ranges()) return;
  const auto late = std::move(rare_->late);
  const auto ranges = call_back("RangeSource", late->source);
  Status taken = ranges ? check_domain(*ranges, late->domain) : Status(ranges.error());
  if (taken) taken = or_out_of_memory([&] { return take(*ranges); });
  if (!taken && ranges && direction == Direction::write) note_unwritten(*ranges);
  if (!taken) stop_because(std::move(taken).error());
}

std::shared_ptr<Request> Request::begin(const std::shared_ptr<Environment>& environment,
                                        const RequestSettings& settings, const RequestOptions& options) {
  auto request = std::make_shared<Request>(Private{}, environment);
  request->begun = Clock::now();
  request->lanes_ = settings.lanes;
  request->kind = settings.kind;
  request->direction = settings.kind == engine::OpKind::read ? Direction::read : Direction::write;
  if (options.on_end || options.on_range) {
    request->callbacks_ = std::make_unique<Callbacks>(options);
  }
  request->in_stream_order_ = settings.in_stream_order;
  request->is_inner_ = settings.is_inner;
  request->is_for_one_lane_ = settings.has_caller;
  request->as_opened_ = options.as_opened;
  request->allowed = route_set(environment->options.allowed_routes);
  request->cache = options.cache.value_or(environment->options.cache);
  request->durable = options.durable && request->direction == Direction::write;
  request->deadline = deadline_of(*environment, options, request->begun);
  // That takes as long as a write does: not where others wait behind the request, or it may take only so long.
  request->may_wait_ = settings.may_wait && request->deadline == TimePoint::max();
  return request;
}

TimePoint Request::deadline_of(const Environment& environment, const RequestOptions& options, TimePoint begun) {
  const double asked = options.deadline_seconds;
  const double limit = asked != 0 ? asked : environment.options.deadlines.request_seconds;
  return limit != 0 ? time_after(begun, duration_from_seconds(limit)) : TimePoint::max();
}

Status Request::take(std::span<const Range> ranges) {
  if (auto status = add_ranges(ranges); !status) return status;
  if (!is_inner_) {
    if (auto status = prepare_stores(); !status) return status;
  }
  const bool is_late = parts.size() != 0;  // then they are noted next, as for all requests in stream order
  if (checks_identities_ && !is_late) {
    if (auto status = note_first_identities(); !status) return status;
  }
  make_units();
  if (callbacks_ && callbacks_->on_range) {
    left_ = std::make_unique<std::atomic<std::uint64_t>[]>(spans.size());
    for (std::size_t i = 0; i < spans.size(); ++i) left_[i].store(spans[i].length, std::memory_order_relaxed);
  }
  has_ranges_.store(true, std::memory_order_release);
  if (environment_->options.nvtx && !is_inner_) nvtx_range_ = cuda::begin_range(title());
  return {};
}

Request::~Request() {
  environment_->spare_spans.keep(spans.let_go());
  cuda::end_range(nvtx_range_);
}

std::string Request::title() const {
  std::string text = "penstock " + std::string(verb()) + " of " + std::to_string(total_bytes) + " bytes";
  if (stores.size() == 1) text += ", " + stores[0].entry->info().name;
  return text;
}

std::string_view Request::verb() const {
  switch (kind) {
    case engine::OpKind::read:
      return "read";
    case engine::OpKind::zero:
      return "zeroing";
    case engine::OpKind::deallocate:
      return "deallocation";
    default:
      return "write";
  }
}

std::string Request::engine_name(std::size_t engine) const {
  return std::string((*environment_->engines)[engine]->description().name);
}

Status Request::prepare_stores() {
  for (StoreUse& use : stores) {
    StoreEntry& entry = *use.entry;
    if (direction == Direction::read) {
      if (auto status = entry.check_end(use.end, deadline); !status) return status;
      const bool is_worth_asking =
          total_bytes >= identity_checked_from_bytes || (as_opened_ && !is_remote(entry.info().locality));
      use.check_identity = is_worth_asking && !entry.info().writable && !entry.is_growing();
      checks_identities_ |= use.check_identity;
      asks_servers_ |= use.check_identity && is_remote(entry.info().locality);
      use.stays_cached = cache == Cache::automatic && entry.fits_page_cache(*environment_, begun);
      continue;
    }
    if (entry.store().writer() == nullptr) {
      const bool is_made = entry.info().kind == StoreKind::made;
      return Error{Code::read_only, 0,
                   entry.info().name + (is_made ? " is made as it is read" : " was opened for reading only"),
                   is_made ? "write to a file or a device" : "open it for writing: write, create or replace"};
    }
    if (entry.replacing() != nullptr && entry.replacing()->state() == Replacing::State::aborted) {
      return Error{Code::invalid_argument, 0, entry.info().name + " was aborted", "open it again to write to it"};
    }
    if (kind == engine::OpKind::deallocate) {
      if (auto status = entry.check_end(use.end, deadline); !status) return status;
      continue;
    }
    const engine::Room room{use.begin, use.end};
    const auto reserve = [room](engine::Store& store) { return store.writer()->reserve(room); };
    if (auto status = entry.ask(reserve, deadline); !status) return status;
    if (durable) {
      const auto sync_name = [](engine::Store& store) { return store.writer()->sync_name(); };
      if (auto status = entry.ask(sync_name, deadline); !status) {
        if (status.error().code == Code::timed_out) return status;
        // Nothing is written yet, so this is not Code::not_durable.
        return system_error(status.error().system_error, "sync the folder of " + entry.info().name,
                            "look into the kernel log, or write without syncing (durable)");
      }
    }
    entry.grown_to(use.end);
    use.stays_cached =
        engine::moves_bytes(kind) && cache == Cache::automatic && entry.fits_page_cache(*environment_, begun);
    const bool is_in_place = use.stays_cached && entry.replacing() == nullptr;
    if (is_in_place && total_bytes >= DiskRates::noted_from_bytes) {
      use.written = entry.cached_file().rates_of(Direction::write).next(total_bytes);
    }
  }
  return {};
}

IdentityQuery::Stores Request::checked_stores() const {
  IdentityQuery::Stores checked;
  for (const StoreUse& use : stores) {
    if (use.check_identity) checked.push_back(use.entry);
  }
  return checked;
}

Status Request::note(const Identities& identities) {
  auto identity = identities.begin();
  for (StoreUse& use : stores) {
    if (!use.check_identity) continue;
    if (!*identity) return identity->error();
    use.before = as_opened_ ? use.entry->info().identity : **identity;
    ++identity;
    if (may_wait_) use.entry->store().await_writers();
  }
  return {};
}

Status Request::note_first_identities() {
  if (!asks_servers_) return note(identities_of(checked_stores()));
  if (Status asked = begin_query([] {}); !asked) return asked;
  Status answered = rare_->asked->begun.wait_until(std::min(deadline, environment_->calls->patience_end()));
  if (!answered && Clock::now() >= deadline) {
    return Error{Code::timed_out, 0,
                 "the deadline passed before the server of " + asked_store().info().name + " answered",
                 "allow more time, or find out why the server is slow"};
  }
  if (!answered) {
    Error error = std::move(answered).error();
    error.message.insert(0, asked_store().info().name + ": ");
    return error;
  }
  Status noted = note(asked()->query->identities());
  forget_asked();
  return noted;
}

bool Request::note_identities_again() {
  const auto note_or_stop = [this](const Identities& identities) {
    if (auto status = note(identities); !status) stop_because(std::move(status).error());
  };
  if (!asks_servers_) {
    note_or_stop(identities_of(checked_stores()));
    return true;
  }
  if (asked() == nullptr) ask_servers([] {});
  if (!servers_answered()) {
    const double stall_seconds = environment_->options.deadlines.stall_seconds;
    const bool stalls = asked() != nullptr && stall_seconds > 0 &&
                        seconds_between(asked()->query->begun(), Clock::now()) >= stall_seconds;
    if (stalls) stop(Code::timed_out);
    return false;
  }
  note_or_stop(asked()->query->identities());
  forget_asked();
  return true;
}

void Request::ask_servers(std::function<void()> on_answer) {
  const Status asked = begin_query(std::move(on_answer));
  unasked_ = !asked.ok();
  if (unasked_) stop(asked.error().code);
}

// One whose server is asked; others may be too.
const StoreEntry& Request::asked_store() const {
  const auto remote = std::find_if(stores.begin(), stores.end(), [](const StoreUse& use) {
    return use.check_identity && is_remote(use.entry->info().locality);
  });
  return *remote->entry;
}

// By the engine of one of them: the question is the same to all.
Status Request::begin_query(std::function<void()> on_answer) {
  return or_out_of_memory([&]() -> Status {
    auto query = std::make_shared<IdentityQuery>(checked_stores(), std::move(on_answer));
    auto call = environment_->calls->begin(asked_store().engine(), query);
    if (!call) return std::move(call).error();
    rare().asked = std::make_unique<Asked>(Asked{std::move(query), std::move(*call)});
    return {};
  });
}

// A range that failed has more left than any has bytes.
void Request::count_moved(std::uint32_t range, std::uint64_t bytes) {
  if (left_[range].fetch_sub(bytes, std::memory_order_acq_rel) != bytes) return;
  call_back("RequestOptions::on_range", callbacks_->on_range, range, Code::ok);
}

void Request::range_failed(std::uint64_t range, Code code) {
  constexpr std::uint64_t failed = std::uint64_t{3} << 62;
  if (!left_ || left_[range].exchange(failed, std::memory_order_acq_rel) > failed / 2) return;
  call_back("RequestOptions::on_range", callbacks_->on_range, range, code);
}

void Part::add_failure(Failure failure, const Error* cause) {
  if (stage != Stage::flush) hold->range_failed(failure.range, failure.code);
  // The numbers of CUDA go with its own codes only: elsewhere they would be read as the system's.
  const bool is_of_cuda = failure.code == Code::device_error || failure.code == Code::device_lost;
  if (cause != nullptr && is_of_cuda) failure.system_error = cause->system_error;
  do_or_stop([&] {
    if (failure_count == 0 && cause != nullptr) first_cause = std::make_unique<Error>(*cause);
    if (failures.size() < Request::failures_kept) failures.push_back(failure);
    ++failure_count;
  });
}

void Request::stop(Code code) {
  Code none = Code::ok;
  // Sequentially consistent with lanes_are_set: either the lanes are seen here, or they see the code when they begin.
  if (!stop_code_.compare_exchange_strong(none, code, std::memory_order_seq_cst)) return;
  // Our copies stand behind the stream that waits for them.
  if (code == Code::would_deadlock && order) order->release();
  wake_lanes();
}

void Request::wake_lanes() const {
  if (!has_lanes()) return;
  for (const Part& part : parts) part.lane->attend();
}

void Request::wake_next_lanes() {
  constexpr int lanes_woken_at_once = 2;
  const auto count = static_cast<std::uint32_t>(parts.size());
  for (int woken = 0; woken < lanes_woken_at_once && next_to_wake_.load(std::memory_order_relaxed) < count;) {
    const std::uint32_t next = next_to_wake_.fetch_add(1, std::memory_order_seq_cst);
    if (next < count && parts[next].lane->wake_sleeper()) ++woken;
  }
}

void Request::stop_because(Error cause) {
  const Code code = cause.code;
  stop_cause_ = std::make_unique<const Error>(std::move(cause));
  stop(code);
}

std::optional<Stage> Request::next_stage(Stage done) const {
  if (stop_code() != Code::ok) return std::nullopt;
  const auto has_edges = [](const Part& part) { return !part.edges.empty(); };
  const bool may_have_edges = done == Stage::transfer && direction == Direction::write;
  if (may_have_edges && std::ranges::any_of(parts, has_edges)) return Stage::edges;
  const bool ends_with_more = durable || asks_servers_;
  if (!ends_with_more || bytes_done() != total_bytes) return std::nullopt;
  if (durable && done != Stage::flush) return Stage::flush;
  if (asks_servers_ && done != Stage::identities) return Stage::identities;
  return std::nullopt;
}

void Request::end_unstarted(const std::shared_ptr<Request>& request) {
  for (Part& part : request->parts) part.withdrawn = true;
  end_without_lanes(request);
}

void Request::end_without_lanes(const std::shared_ptr<Request>& request) {
  for (std::size_t left = request->parts.size(); left != 0; --left) {
    if (request->leave() && request->conclude(request, Clock::now())) request->wake_waiters();
  }
  request->environment_->ends.announce();
}

void Request::wake_waiters() const {
  futex_wake_all(wait_word_);
}

bool Request::conclude(const std::shared_ptr<Request>& self, TimePoint end) {
  const Outcome outcome = judge();
  seconds_ = seconds_between(begun, end);
  if (!is_inner_) environment_->statistics.request_ended(outcome == Outcome::done);
  cuda::end_range(std::exchange(nvtx_range_, 0));
  forget_asked();
  attachments.clear();
  if (direction == Direction::write) note_writes(outcome);
  auto last_held = held.let_go();
  auto used = std::move(transforms);
  if (rare_) rare_->late.reset();
  let_go_of_stores(self);
  // A kept Ticket keeps nothing of the caller's.
  auto callbacks = std::move(callbacks_);
  if (callbacks) callbacks->on_range = nullptr;

  outcome_.store(outcome, std::memory_order_release);
  if (order) order->release();  // whoever waited for the stream finds the outcome
  // Sequentially consistent with then(): either who waits is seen here, or sees the end there.
  const bool someone_sleeps = wait_word_.exchange(2, std::memory_order_seq_cst) == 1;
  if (waiting_.load(std::memory_order_seq_cst) != nullptr) call_waiting();
  announce_to_any_wait();
  if (port_) {
    port_->complete(place_, outcome == Outcome::done ? Code::ok : error_code(), bytes_done());
    port_.reset();
  }
  environment_->completions.free_there(std::move(last_held));
  if (used) environment_->completions.post(std::move(used));
  if (callbacks && callbacks->at_end) callbacks->at_end();
  if (callbacks && callbacks->on_end) {
    callbacks->on_end->request = self;
    environment_->completions.post(std::move(callbacks));
  }
  return someone_sleeps;
}

// The request is held here: as soon as the call is in the list, it may be made, and end whoever else holds it.
void Request::then(std::shared_ptr<Request> request, std::function<void()> call) {
  const std::shared_ptr<Request> held = std::move(request);
  auto waiting = std::make_unique<Waiting>(std::move(call));
  waiting->next = held->waiting_.load(std::memory_order_relaxed);
  while (!held->waiting_.compare_exchange_weak(waiting->next, waiting.get(), std::memory_order_seq_cst)) {
  }
  static_cast<void>(waiting.release());  // it belongs to who takes the list
  if (held->wait_word_.load(std::memory_order_seq_cst) == 2) held->call_waiting();
}

void Request::call_waiting() {
  Waiting* waiting = waiting_.exchange(nullptr, std::memory_order_acquire);
  while (waiting != nullptr) {
    std::unique_ptr<Waiting> first(std::exchange(waiting, waiting->next));
    environment_->completions.post(std::move(first));
  }
}

// By range, since there may be gaps between them.
void Request::note_writes(Outcome outcome) const {
  for (const Span& span : spans) {
    Replacing* const replacing = stores[span.store].entry->replacing();
    if (replacing == nullptr || span.length == 0) continue;
    if (outcome == Outcome::abandoned) replacing->spoil();
    if (outcome == Outcome::done) {
      replacing->written(span.offset, span.offset + span.length);
    } else {
      replacing->failed(span.offset, span.offset + span.length);
    }
  }
}

void Request::note_unwritten(std::span<const Range> ranges) {
  for (const Range& range : ranges) {
    StoreEntry* const entry = StoreEntry::of(range.store);
    if (entry == nullptr) continue;
    Replacing* const replacing = entry->replacing();
    if (replacing == nullptr) continue;
    // What would overflow fails at its last byte at least.
    const std::uint64_t begin = std::min(range.offset, UINT64_MAX - 1);
    const std::uint64_t length = std::min<std::uint64_t>(range.memory.size_bytes, UINT64_MAX - begin);
    replacing->failed(begin, begin + length);
  }
}

// A kept Ticket keeps no store open.
void Request::let_go_of_stores(const std::shared_ptr<Request>& self) {
  bool may_leave_some = survey.may_have_leftovers(*this);
  for (const Part& part : parts) may_leave_some |= !part.afterwards.empty();
  bool closes = false;
  for (const StoreUse& use : stores) closes |= use.entry.use_count() == 1;
  if (may_leave_some || closes) post_rest_of_stores(self, closes);
  for (StoreUse& use : stores) use.entry.reset();
}

// Closing may take its time, so what nobody else has is closed by the completion thread; who opens it again waits for
// that. What there is no memory for stays in the page cache, or is closed here.
void Request::post_rest_of_stores(const std::shared_ptr<Request>& self, bool closes) const {
  std::vector<Stretch> leftovers;
  static_cast<void>(or_out_of_memory([&]() -> Status {
    for (const Part& part : parts) leftovers.insert(leftovers.end(), part.afterwards.begin(), part.afterwards.end());
    survey.add_leftovers(*this, leftovers);
    return {};
  }));
  if (leftovers.empty() && !closes) return;
  static_cast<void>(or_out_of_memory([&]() -> Status {
    std::vector<std::shared_ptr<StoreEntry>> entries;
    for (const StoreUse& use : stores) entries.push_back(use.entry);
    environment_->completions.post([self, entries = std::move(entries), all = std::move(leftovers)]() mutable {
      settle_page_cache(entries, std::move(all));
    });
    return {};
  }));
}

// Pages are dropped all at once, since each call makes the kernel look through the lists of every CPU.
void Request::settle_page_cache(std::span<const std::shared_ptr<StoreEntry>> entries, std::vector<Stretch> all) {
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size();) {
    Stretch run = all[i++];
    while (i < all.size() && all[i].fills == run.fills && all[i].store == run.store &&
           all[i].offset == run.offset + run.length) {
      run.length += all[i++].length;
    }
    engine::PageCache& cache = *entries[run.store]->store().page_cache();
    if (!run.fills) {
      cache.drop(run.offset, run.length);
      continue;
    }
    for (std::uint64_t done = 0; done < run.length; done += filled_at_once_bytes) {
      static_cast<void>(cache.prefetch(run.offset + done, std::min(filled_at_once_bytes, run.length - done)));
    }
  }
}

bool Request::is_run_by_callers() const {
  return has_lanes() && parts[0].lane->runner() == Runner::callers;
}

bool Request::help_until(TimePoint time) const {
  return is_run_by_callers() && parts[0].lane->try_step(time);
}

bool Request::wait_until(TimePoint time) const {
  while (true) {
    std::uint32_t word = wait_word_.load(std::memory_order_acquire);
    if (word == 2) return true;
    const bool callers_work = is_run_by_callers();
    const TimePoint now = Clock::now();
    if (now >= time) return false;
    if (callers_work && help_until(time)) continue;
    if (word == 0 && !wait_word_.compare_exchange_weak(word, 1, std::memory_order_acq_rel)) continue;
    // Whoever works now may stop as soon as what it waits for has ended; then it is our turn.
    futex_wait_until(wait_word_, 1, callers_work ? std::min(time, now + turn) : time);
  }
}

std::uint64_t Request::bytes_done() const {
  std::uint64_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes.load(std::memory_order_relaxed);
  return bytes;
}

Outcome Request::cancel() {
  if (ended()) return outcome();
  stop(Code::cancelled);
  // A lane gives its operations the grace and then lets go of them, so this ends soon after.
  const double time_to_notice = 0.08;
  const double seconds = environment_->options.deadlines.cancel_grace_seconds + time_to_notice;
  if (!CompletionThread::inside_callback()) wait_until(time_after(Clock::now(), duration_from_seconds(seconds)));
  return outcome();
}

}  // namespace penstock::core
