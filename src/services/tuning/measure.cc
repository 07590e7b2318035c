#include "services/tuning/measure.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/callback.h"
#include "base/clock.h"

namespace penstock {

namespace tuning {

namespace {

constexpr std::uint64_t mib = 1 << 20;
constexpr int climbing_rounds = 3;
constexpr int deciding_rounds = 7;
constexpr double climbing_share = 0.7;       // of the time
constexpr double one_read_share = 1.0 / 30;  // of the time: what a plain read of all bytes may take
constexpr int tries = 3;                     // pages that are just being read can't be evicted yet

// Long enough that a clock tells it well, short enough for many.
double round_seconds(double all_seconds) {
  return std::clamp(all_seconds / 400, 0.002, 0.2);
}

std::uint64_t bytes_by(const Report& report, std::initializer_list<Route> routes) {
  std::uint64_t bytes = 0;
  for (const Route route : routes) bytes += report.routes[static_cast<std::size_t>(route)];
  return bytes;
}

}  // namespace

Measurement::Measurement(const TuningSearch& search, int fd, Context owner)
    : search_(search), fd_(fd), owner_(std::move(owner)) {}

Measurement::~Measurement() {
  close(fd_);
}

Result<std::unique_ptr<Measurement>> Measurement::create(const TuningSearch& search) {
  // The memory is the same for all Contexts that are compared, so it belongs to none of them.
  Options options;
  options.pinned_budget_bytes += search.size_bytes;
  Result<Context> owner = Context::create(options);
  if (!owner) return owner.error();
  const Result<Store> store = owner->open(search.path);
  if (!store) return store.error();
  const std::uint64_t most = std::min(search.size_bytes, store->info().size_bytes) / mib * mib;
  if (most == 0) {
    return Error{.code = Code::invalid_argument,
                 .message = search.path + " is too small to measure with",
                 .hint = "name a file of at least 1 MiB, better 1 GiB"};
  }
  const int fd = open(search.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error(errno, "open " + search.path);
  std::unique_ptr<Measurement> made(new Measurement(search, fd, std::move(*owner)));

  measuring::evict(fd);
  const Result<std::uint64_t> size = made->warm(most, search.seconds * one_read_share);
  if (!size) return size.error();
  Result<Buffer> memory = made->owner_.allocate(search.memory, std::max(*size / mib * mib, mib));
  if (!memory) return memory.error();
  made->memory_ = std::move(*memory);
  // The first touch of fresh memory is the kernel's cost, not the store's.
  if (search.memory.host_accessible()) std::memset(made->memory_.data(), 0, made->memory_.size_bytes());
  return made;
}

Result<Subject> Measurement::make_subject(const Options& options) {
  return measuring::make_subject(search_.path, options, memory_.region());
}

Result<std::uint64_t> Measurement::warm(std::uint64_t size_bytes, double seconds) {
  return measuring::warm({.fd = fd_, .size_bytes = size_bytes, .seconds = seconds}, search_.keep_going);
}

Result<Report> Measurement::load(Subject& subject) {
  return measuring::move_front(subject, Direction::read, memory_.region(), search_.keep_going);
}

Result<std::optional<double>> Measurement::round(Subject& subject, State state) {
  std::uint64_t bytes = 0;
  double seconds = 0;
  for (int misses = 0; seconds < round_seconds(search_.seconds);) {
    // Whether it worked is seen by the route of the load.
    if (state == State::cold) measuring::evict(fd_);
    const Result<Report> report = load(subject);
    if (!report) return report.error();
    const std::uint64_t from_device =
        bytes_by(*report, {Route::direct, Route::direct_staged, Route::gds, Route::p2pdma});
    if (from_device == (state == State::cold ? report->bytes : 0)) {
      bytes += report->bytes;
      seconds += report->seconds;
      continue;
    }
    if (++misses == tries) return std::optional<double>();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (state == State::cached) {
      if (const auto warmed = warm(size_bytes(), search_.seconds); !warmed) return warmed.error();
    }
  }
  return std::optional(static_cast<double>(bytes) / seconds);
}

Result<Rounds> Measurement::take_turns(Subject& before, Subject& after, State state, int count) {
  bool& measurable = measurable_[static_cast<std::size_t>(state)];
  Rounds rounds;
  for (int turn = 0; measurable && turn < count; ++turn) {
    // Who comes second may find something warm: they take turns in that too.
    const bool swap = turn % 2 != 0;
    const Result<std::optional<double>> first = round(swap ? after : before, state);
    if (!first) return first.error();
    const Result<std::optional<double>> second = round(swap ? before : after, state);
    if (!second) return second.error();
    if (!*first || !*second) {
      measurable = false;
      return Rounds();
    }
    rounds.before.push_back(swap ? **second : **first);
    rounds.after.push_back(swap ? **first : **second);
  }
  return rounds;
}

Result<Comparison> Measurement::compare(const Options& before, const Options& after, int rounds) {
  Result<Subject> first = make_subject(before);
  if (!first) return first.error();
  Result<Subject> second = make_subject(after);
  if (!second) return second.error();
  if (const auto warmed = warm(size_bytes(), search_.seconds); !warmed) return warmed.error();
  // The first load of a Context starts its threads.
  for (Subject* subject : {&*first, &*second}) {
    if (const Result<Report> report = load(*subject); !report) return report.error();
  }
  Result<Rounds> cached = take_turns(*first, *second, State::cached, rounds);
  if (!cached) return cached.error();
  Result<Rounds> cold = take_turns(*first, *second, State::cold, rounds);
  if (!cold) return cold.error();
  if (cached->before.empty() && cold->before.empty()) {
    return Error{.code = Code::unsupported,
                 .message = search_.path + " is neither reliably in the page cache nor out of it",
                 .hint = "try when nothing else reads it, or with more free memory"};
  }
  return Comparison{std::move(*cached), std::move(*cold)};
}

}  // namespace tuning

Result<TuningResult> search_tuning(const TuningSearch& given) {
  if (Status status = check_seconds("TuningSearch::seconds", given.seconds); !status) return std::move(status).error();
  const double start = measuring::now();
  TuningSearch search = given;
  // Absolute, it is a path to everybody, whatever it looks like.
  std::error_code ignored;
  search.path = std::filesystem::absolute(given.path, ignored).string();
  search.keep_going = keep_going_by("TuningSearch::keep_going", given.keep_going);
  Result<std::unique_ptr<tuning::Measurement>> measurement = tuning::Measurement::create(search);
  if (!measurement) return measurement.error();

  TuningResult result{.size_bytes = (*measurement)->size_bytes()};
  tuning::Climb job{.machine = (*measurement)->machine(), .staged = !search.memory.host_accessible()};
  job.compare = [&](const Options& before, const Options& after) {
    return (*measurement)->compare(before, after, tuning::climbing_rounds);
  };
  job.in_time = [&] { return measuring::now() - start < search.seconds * tuning::climbing_share; };
  job.on_trial = [&](const TuningTrial& trial) {
    result.trials.push_back(trial);
    if (search.on_trial) call_back("TuningSearch::on_trial", search.on_trial, trial);
  };
  const Result<Options> best = tuning::climb(job);
  if (!best) return best.error();

  // Against themselves the defaults show how fast they are and how noisy the machine is, and can't win.
  const Result<tuning::Comparison> decision = (*measurement)->compare(Options(), *best, tuning::deciding_rounds);
  if (!decision) return decision.error();
  const tuning::Verdict verdict = tuning::judge(*decision);
  result.better = verdict.better && *best != Options();
  result.noise = verdict.noise;
  result.options = *best;
  result.cached = decision->cached.medians();
  result.cold = decision->cold.medians();
  result.seconds = measuring::now() - start;
  return result;
}

}  // namespace penstock
