// The request's second half: what became of it, in numbers and in words.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/out_of_memory.h"
#include "core/environment.h"
#include "core/request.h"

namespace penstock::core {

namespace {

// What there is to say where only a code is known.
std::string text_of(Code code, const Options& options) {
  switch (code) {
    case Code::truncated:
      return "the store ended before the requested bytes";
    case Code::no_space:
      return "there is no room left";
    case Code::no_route:
      return "no allowed route can carry it";
    case Code::engine_unavailable:
      return "its engine could not make a queue; the log says why";
    case Code::out_of_memory:
      return "there is no memory left";
    case Code::over_budget:
      return "the pinned budget is spent: pinned_budget_bytes is " + std::to_string(options.pinned_budget_bytes);
    default:
      return std::string(code_name(code));
  }
}

// What to do where nothing better is known.
const char* usual_hint(Code code, std::int32_t system_error) {
  switch (code) {
    case Code::invalid_argument:
      if (system_error != EFAULT) break;
      return "the memory is not mapped, or not accessible this way: check its address and length, and keep it until "
             "the request has ended";
    case Code::truncated:
      return "the file became shorter during the read, or was never as long as its size says; compare with wc -c";
    case Code::no_space:
      return "free some space on the file system";
    case Code::io_error:
      return "look at the kernel log for the device";
    case Code::permission_denied:
      return "change the permissions, or run as a user who has them";
    case Code::engine_unavailable:
      return "`penstock engines` says what would help; or leave the engine unset";
    case Code::out_of_memory:
      return "transfer less at a time, or raise the memory limit of the machine, container or process";
    case Code::over_budget:
      return "free pinned buffers, or raise pinned_budget_bytes";
    case Code::device_lost:
      return cuda::device_lost_hint;
    case Code::internal:
      return "please report this with the message";
    default:
      break;
  }
  return "`penstock doctor` says what this machine and the store can do; the kernel log may say more";
}

}  // namespace

Report Request::add_up_parts() const {
  Report report;
  report.outcome = outcome();
  report.seconds = seconds_;
  double wall_seconds = 0;
  for (const Part& part : parts) {
    report.bytes += part.bytes.load(std::memory_order_relaxed);
    part.routes.add_to(report.routes);
    report.extra_bytes += part.extra_bytes;
    report.stored_bytes += part.stored_bytes;
    report.made_bytes += part.made_bytes;
    report.failure_count += part.failure_count;
    if (!part.time) continue;
    report.cpu_seconds += part.time->cpu_seconds;
    report.copy_seconds += part.time->copy_seconds;
    wall_seconds += part.time->wall_seconds;
  }
  settle_time(report, wall_seconds);
  return report;
}

void settle_time(Report& report, double wall_seconds) {
  const double waited = std::max(0.0, wall_seconds - report.cpu_seconds - report.copy_seconds);
  const auto bytes_by = [&](Route route) { return report.routes[static_cast<std::size_t>(route)]; };
  const bool mostly_copied = bytes_by(Route::cached) + bytes_by(Route::cached_staged) > report.bytes / 20 * 19;
  // Copying out of the page cache is the CPU's work, also where a lane had to wait for a CPU, or for a thread that
  // copies for it.
  (mostly_copied ? report.cpu_seconds : report.storage_seconds) += waited;
  if (wall_seconds == 0) return;
  // Lanes that have work to do wait for copies only if the bus is full: on one with 16 lanes it is 20 to 40 % of their
  // time, and next to nothing where four can't fill it.
  const bool waited_for_copies = report.copy_seconds > 0.1 * wall_seconds;
  const bool mostly_busy = report.cpu_seconds > 0.6 * wall_seconds;
  report.limit = waited_for_copies && report.copy_seconds > waited ? Limit::copy
                 : mostly_copied || mostly_busy                    ? Limit::cpu
                                                                   : Limit::storage;
}

Outcome Request::judge() {
  std::uint64_t bytes = 0;
  std::uint32_t flushed = 0;
  bool abandoned = false;
  bool failed = false;
  for (const Part& part : parts) {
    bytes += part.bytes.load(std::memory_order_relaxed);
    failed |= part.failure_count != 0;
    flushed += part.stores_flushed;
    abandoned |= part.abandoned;
    stopped_short_ |= part.withdrawn;
  }
  if (abandoned) return Outcome::abandoned;
  // A stream that was let go before its request had ended has gone on without the bytes.
  const bool in_order = stop_code() != Code::would_deadlock;
  const bool whole = has_ranges_.load(std::memory_order_relaxed) && in_order && bytes == total_bytes &&
                     (!durable || flushed == stores.size());
  const bool answered = servers_answered();
  unanswered_ = asked() != nullptr && !answered;
  // Without an answer nobody knows whether the bytes belong together.
  const bool unknown = whole && asks_servers_ && !answered;
  stopped_short_ = unknown || (!whole && (stopped_short_ || !failed));
  if (stopped_short_) return outcome_of_stop();
  if (failed) return Outcome::failed;
  return checks_identities_ ? judge_identities() : Outcome::done;
}

Outcome Request::outcome_of_stop() const {
  const bool asked_for = stop_code() == Code::cancelled || stop_code() == Code::closed;
  return asked_for ? Outcome::cancelled : Outcome::failed;
}

// Where there is no memory for a doubt, nobody knows whether the bytes belong together.
Outcome Request::judge_identities() {
  const Status judged = or_out_of_memory([&]() -> Status {
    if (const auto doubt = find_doubt()) fail_because(*doubt);
    return {};
  });
  if (judged) return parts[0].failure_count == 0 ? Outcome::done : Outcome::failed;
  stop(Code::out_of_memory);
  stopped_short_ = true;
  return outcome_of_stop();
}

std::optional<Request::Doubt> Request::find_doubt() const {
  std::size_t checked = 0;
  for (std::uint32_t store = 0; store < stores.size(); ++store) {
    if (!stores[store].check_identity) continue;
    auto doubt = asks_servers_ ? doubt_about(store, asked()->query->identities()[checked++])
                               : doubt_about(store, identity_of(*stores[store].entry));
    if (doubt) return doubt;
  }
  return std::nullopt;
}

std::optional<Request::Doubt> Request::doubt_about(std::uint32_t store, const Result<Identity>& now) const {
  if (!now) return Doubt{store, now.error()};
  if (*now != stores[store].before) return Doubt{store, {.code = Code::changed}};
  return std::nullopt;
}

void Request::fail_because(const Doubt& doubt) {
  const auto span = std::find_if(spans.begin(), spans.end(), [&](const Span& one) { return one.store == doubt.store; });
  const Failure failure{.range = static_cast<std::uint32_t>(span - spans.begin()),
                        .bytes = total_bytes,
                        .code = doubt.cause.code,
                        .system_error = doubt.cause.system_error};
  auto cause = std::make_unique<Error>(doubt.cause);
  cause->message.insert(0, "it is unknown whether it has changed: ");
  parts[0].failures.push_back(failure);
  parts[0].failure_count = 1;
  parts[0].first_cause = std::move(cause);
}

// Of the failure that the Report names: the first of the first part that has some. A number by itself says nothing to a
// person. Engines know their own, which are none of the system's or of CUDA's.
engine::Meaning Request::cause_of(const Failure& failure, const StoreFacts& store) const {
  const auto failed = std::find_if(parts.begin(), parts.end(), [](const Part& part) { return !part.failures.empty(); });
  if (failed != parts.end() && failed->first_cause) return {failed->first_cause->message, failed->first_cause->hint};
  const std::int32_t number = failure.system_error;
  if (number == 0) return {text_of(failure.code, environment_->options), {}};
  for (const auto engine : {has_gpu ? store.device_engine : std::nullopt, std::optional(store.engine)}) {
    if (!engine) continue;
    if (auto meaning = (*environment_->engines)[*engine]->meaning_of(number)) return *meaning;
  }
  if (failure.code != Code::device_error && failure.code != Code::device_lost) return {std::strerror(number), {}};
  const auto driver = cuda::Driver::get();
  if (!driver) return {"CUDA error " + std::to_string(number), {}};
  Error error = (*driver)->error(number, "CUDA");
  return {std::move(error.message), std::move(error.hint)};
}

Error Request::describe_failures(const Report& report) const {
  const Failure& first = report.failures.front();
  const StoreFacts& store = *stores[first.range < spans.size() ? spans[first.range].store : 0].facts;
  std::string message = store.name + ": " + std::string(verb());
  if (first.code == Code::changed) {
    return {
        Code::changed, 0,
        store.name + ": the file was modified or replaced " + (as_opened_ ? "since it was opened" : "during the read"),
        as_opened_ ? "open it again when nothing writes to it" : "read it again when nothing writes to it"};
  }
  // What makes bytes tells what is wrong by itself, and places in between mean nothing to anybody else.
  if (!store.is_made) {
    message += " of " + std::to_string(first.bytes) + " bytes at offset " + std::to_string(first.offset);
  }
  message += " failed: ";
  engine::Meaning cause = cause_of(first, store);
  message += cause.text;
  if (report.failure_count > 1) {
    message += " (the first of " + std::to_string(report.failure_count) + " failed operations)";
  }
  std::string hint = cause.hint.empty() ? usual_hint(first.code, first.system_error) : std::move(cause.hint);
  if (first.code == Code::no_route) {
    hint = store.from_host ? "allow more routes, or leave allowed_routes empty"
                           : "name the engine's route in allowed_routes, or leave the engine unset";
  }
  return {first.code, first.system_error, std::move(message), std::move(hint)};
}

Error Request::describe(const Report& report) const {
  const std::string progress =
      std::to_string(report.bytes) + " of " + std::to_string(total_bytes) + " bytes were transferred";
  switch (report.outcome) {
    case Outcome::abandoned:
      return {Code::abandoned, 0, "operations did not come back in time; " + progress,
              engine::moves_bytes(kind) ? "keep the memory until the process ends: the device may still touch it"
                                        : "the device may still change the range"};
    case Outcome::cancelled:
      return {stop_code(), 0,
              (stop_code() == Code::closed ? "the Context was closed; " : "cancelled by the caller; ") + progress, ""};
    default:
      break;
  }
  if (!stopped_short_) return describe_failures(report);
  if (stop_cause_ && stop_cause_->code == stop_code()) {
    return {stop_cause_->code, stop_cause_->system_error, stop_cause_->message + "; " + progress, stop_cause_->hint};
  }
  if (stop_code() == Code::would_deadlock) {
    return {Code::would_deadlock, 0, "copies could not get past a stream that waits for them; " + progress,
            "put no copies on a stream behind late ranges or a standing request, or set CUDA_DEVICE_MAX_CONNECTIONS=32 "
            "before CUDA starts"};
  }
  const std::string server = "the server of " + (stores.size() == 1 ? stores[0].facts->name : "a file");
  if (stop_code() == Code::out_of_memory && unasked_) {
    return {Code::out_of_memory, 0, "no thread could be started to ask " + server + " about it; " + progress,
            "raise the limit of threads (`ulimit -u`), or that of the container"};
  }
  if (stop_code() == Code::out_of_memory) {
    return {Code::out_of_memory, 0, "there was no memory left to go on with; " + progress,
            "free memory, or raise the limit of the container"};
  }
  if (stop_code() == Code::timed_out && unanswered_) {
    return {Code::timed_out, 0, server + " did not say in time whether it has changed; " + progress,
            "find out why the server does not answer, or allow more time"};
  }
  return {Code::timed_out, 0, "the deadline passed; " + progress, "allow more time, or find out why storage is slow"};
}

std::string Request::explain() const {
  std::string text;
  const auto add = [&](const std::string& reason) {
    if (!reason.empty() && text.find(reason) == std::string::npos) text += (text.empty() ? "" : "; ") + reason;
  };
  for (const StoreUse& use : stores) {
    add(use.facts->engine_reason);
    if (has_gpu) add(use.facts->device_reason);
  }
  if (rare_ && !rare_->passed_over.empty()) add(rare_->passed_over);
  Tally<reason_count>::Bytes reasons{};
  for (const Part& part : parts) part.reasons.add_to(reasons);
  const auto used = std::count_if(reasons.begin(), reasons.end(), [](std::uint64_t bytes) { return bytes != 0; });
  for (std::size_t i = 0; i < reason_count; ++i) {
    if (reasons[i] == 0) continue;
    text += "; ";
    if (used > 1) text += std::to_string(reasons[i]) + " bytes: ";
    text += reason_text(static_cast<Reason>(i));
  }
  return text;
}

// Without memory the texts are missing, and the failures one by one.
Report Request::report() const {
  Report report;
  if (ended()) {
    report = add_up_parts();
  } else {
    report.bytes = bytes_done();
    report.seconds = seconds_between(begun, Clock::now());
  }
  try {
    describe_in(report);
  } catch (const std::bad_alloc&) {
    const bool has_error = report.outcome != Outcome::pending && report.outcome != Outcome::done;
    if (has_error) report.error = Error{.code = error_code(), .message = "out of memory", .hint = {}};
  }
  return report;
}

Code Request::error_code() const {
  if (outcome() == Outcome::abandoned) return Code::abandoned;
  if (stopped_short_) return stop_code() != Code::ok ? stop_code() : Code::timed_out;
  const auto failed = std::find_if(parts.begin(), parts.end(), [](const Part& part) { return !part.failures.empty(); });
  return failed != parts.end() ? failed->failures.front().code : Code::out_of_memory;
}

void Request::describe_in(Report& report) const {
  const auto add_engine = [&](std::size_t engine) {
    const std::string name = engine_name(engine);
    if (report.engine.find(name) == std::string::npos) report.engine += (report.engine.empty() ? "" : ",") + name;
  };
  const auto bytes_by = [&](Route route) { return report.routes[static_cast<std::size_t>(route)]; };
  const bool went_straight = bytes_by(Route::gds) + bytes_by(Route::p2pdma) + bytes_by(Route::cufile_compat) +
                                 bytes_by(Route::cufile_unknown) !=
                             0;
  // Before a late request has begun there are none to look at.
  const bool has_stores = has_ranges_.load(std::memory_order_acquire) || report.outcome != Outcome::pending;
  for (const StoreUse& use : std::span(stores.data(), has_stores ? stores.size() : 0)) {
    if (!use.facts) continue;
    add_engine(use.facts->engine);
    if (has_gpu && use.facts->device_engine && went_straight) add_engine(*use.facts->device_engine);
  }
  if (report.outcome == Outcome::pending) return;
  for (const Part& part : parts) {
    for (const Failure& failure : part.failures) {
      if (report.failures.size() < failures_kept) report.failures.push_back(failure);
    }
  }
  report.reason = explain();
  if (report.outcome != Outcome::done) report.error = describe(report);
}

}  // namespace penstock::core
