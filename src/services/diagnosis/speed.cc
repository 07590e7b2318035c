#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/bounded.h"
#include "base/callback.h"
#include "base/clock.h"
#include "penstock/context.h"
#include "penstock/diagnosis.h"

namespace penstock {

namespace {

constexpr std::size_t cached_rounds = 3;
constexpr std::uint64_t first_step_bytes = 1 << 20;
constexpr std::uint64_t step_growth = 8;
// Over a slow network, single operations take long: only what takes longer than this is taken for stuck.
constexpr double patience_seconds = 1;

double seconds_since(TimePoint start) {
  return seconds_between(start, Clock::now());
}

Error stopped() {
  return {.code = Code::cancelled, .message = "interrupted"};
}

bool went_by(const Report& report, std::initializer_list<Route> routes) {
  std::uint64_t bytes = 0;
  for (const Route route : routes) bytes += report.routes[static_cast<std::size_t>(route)];
  return report.bytes != 0 && bytes == report.bytes;
}

// Reads the front of one store, in whatever way its Context does.
class Reader {
 public:
  static Result<Reader> create(const SpeedCheck& check, Cache cache) {
    Options options = check.options;
    options.cache = cache;
    Deadlines& deadlines = options.deadlines;
    deadlines.cancel_grace_seconds = std::max(deadlines.cancel_grace_seconds, patience_seconds);
    deadlines.close_seconds = std::max(deadlines.close_seconds, 2 * deadlines.cancel_grace_seconds);
    Result<Context> context = Context::create(options);
    if (!context) return context.error();
    Result<Store> store = context->open(check.path);
    if (!store) return store.error();
    if (Status ready = context->prepare(check.memory); !ready) return std::move(ready).error();
    return Reader(check, std::move(*context), std::move(*store));
  }

  const StoreInfo& info() const { return store_.info(); }
  std::uint64_t memory_bytes() const { return context_.machine().memory_bytes; }
  std::optional<std::uint64_t> cached_bytes(std::uint64_t size) const { return store_.cached_bytes(0, size); }

  Result<Report> read(Region memory, std::uint64_t offset = 0) {
    if (check_.memory == Domain::pinned()) {
      if (Status attached = context_.attach(memory); !attached) return std::move(attached).error();
    }
    const Range range{.store = &store_, .offset = offset, .memory = memory};
    Result<Ticket> ticket = context_.submit(Direction::read, {&range, 1});
    if (!ticket) return ticket.error();
    const auto start = Clock::now();
    bool go_on = true;
    while (!ticket->wait_for(std::chrono::milliseconds(50))) {
      go_on = go_on && check_.keep_going();
      if (!go_on || seconds_since(start) > check_.seconds) ticket->cancel();
    }
    Report report = ticket->report();
    // Before all else: the memory is not ours again.
    if (report.outcome == Outcome::abandoned) return *report.error;
    if (check_.memory == Domain::pinned()) static_cast<void>(context_.detach(memory));
    if (!go_on || !check_.keep_going()) return stopped();
    // What was cancelled because the time was over has told enough.
    if (report.outcome == Outcome::failed) return *report.error;
    return report;
  }

 private:
  Reader(const SpeedCheck& check, Context context, Store store)
      : check_(check), context_(std::move(context)), store_(std::move(store)) {}

  const SpeedCheck& check_;
  Context context_;
  Store store_;
};

struct Steps {
  Report longest;
  std::uint64_t bytes = 0;  // from the front, without a gap
};
// Reads no more than fits into the time: of a slow store, what is asked for at once comes back late, and can't be
// called back. What was read is only read again where that is not faster, or may be.
Result<Steps> read_in_steps(const SpeedCheck& check, Reader& reader, Region memory, bool again) {
  Steps steps;
  const auto start = Clock::now();
  for (std::uint64_t next = first_step_bytes; steps.bytes < memory.size_bytes;) {
    const std::uint64_t from = again ? 0 : steps.bytes;
    const std::uint64_t length = std::min(next, memory.size_bytes - from);
    Result<Report> report = reader.read(memory.part(from, length), from);
    if (!report) return report.error();
    const double rate = static_cast<double>(report->bytes) / report->seconds;
    const bool whole = report->bytes == length;
    if (report->bytes >= steps.longest.bytes) steps.longest = std::move(*report);
    if (!whole) break;
    steps.bytes = from + length;
    const double fits =
        std::min(rate * (check.seconds - seconds_since(start)), static_cast<double>(length * step_growth));
    if (fits < static_cast<double>(length)) break;
    next = fits < static_cast<double>(memory.size_bytes)
               ? static_cast<std::uint64_t>(fits) / first_step_bytes * first_step_bytes
               : memory.size_bytes;
    if (again && next <= length) break;
  }
  return steps;
}

struct Stretch {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// What of the front of a file is not in the page cache when this is made. When it is destroyed, that is dropped again:
// measuring leaves nothing behind, also of a file that was there in parts.
class Absence {
 public:
  // A little more than the front: the kernel reads ahead.
  Absence(const std::string& path, const Store& store, std::uint64_t front_bytes)
      : path_(path), size_bytes_(std::min(store.info().size_bytes, front_bytes + read_ahead_bytes)) {
    is_known_ = store.info().page_cache && store.cached_bytes(0, size_bytes_).has_value();
    for (std::uint64_t at = 0; is_known_ && at < size_bytes_; at += largest_question_bytes) {
      look_at(store, {at, std::min(at + largest_question_bytes, size_bytes_)});
    }
  }
  ~Absence() {
    if (!is_known_ || absent_.empty()) return;
    // The server of the file may have stopped answering meanwhile, and is asked by all of these.
    static_cast<void>(comes_back(patience_seconds, [path = path_, absent = std::move(absent_)] {
      const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) return;
      for (const Stretch& one : absent) {
        const auto begin = static_cast<off_t>(one.begin), length = static_cast<off_t>(one.end - one.begin);
        static_cast<void>(posix_fadvise(fd, begin, length, POSIX_FADV_DONTNEED));
      }
      close(fd);
    }));
  }
  Absence(const Absence&) = delete;
  Absence& operator=(const Absence&) = delete;

  // False: the kernel does not tell what is there, so nothing could be dropped that was read into the page cache.
  bool is_known() const { return is_known_; }

 private:
  static constexpr std::uint64_t read_ahead_bytes = 32 << 20;
  static constexpr std::uint64_t largest_question_bytes = 8 << 20;
  static constexpr std::uint64_t smallest_question_bytes = 4096;

  // Halves what is there in part, down to pages. Neighbours become one: a page of the cache may be as large as both,
  // and the kernel only drops what lies in a stretch as a whole.
  void look_at(const Store& store, Stretch asked) {
    const std::uint64_t length = asked.end - asked.begin;
    const std::optional<std::uint64_t> there = store.cached_bytes(asked.begin, length);
    if (!there || *there >= length) return;
    if (*there != 0 && length > smallest_question_bytes) {
      const std::uint64_t half = std::bit_ceil(length) / 2;
      look_at(store, {asked.begin, asked.begin + half});
      look_at(store, {asked.begin + half, asked.end});
      return;
    }
    if (*there != 0) return;
    if (!absent_.empty() && absent_.back().end == asked.begin) {
      absent_.back().end = asked.end;
    } else {
      absent_.push_back(asked);
    }
  }

  std::string path_;
  std::uint64_t size_bytes_;
  bool is_known_ = false;
  std::vector<Stretch> absent_;
};

// Reads the front through the page cache, which keeps it; says how many bytes are there then.
Result<std::uint64_t> warm(const SpeedCheck& check, Region memory) {
  Result<Reader> reader = Reader::create(check, Cache::keep);
  if (!reader) return reader.error();
  const Result<Steps> steps = read_in_steps(check, *reader, memory, true);
  if (!steps) return steps.error();
  return steps->bytes;
}

Status measure_cold(const SpeedCheck& check, Region memory, Speeds& speeds) {
  Result<Reader> reader = Reader::create(check, Cache::bypass);
  if (!reader) return reader.error();
  const bool remote = reader->info().locality == Locality::network || reader->info().locality == Locality::fuse;
  if (reader->info().locality == Locality::memory) {
    speeds.no_cold_because = reader->info().file_system + " is memory, so it is never cold";
  } else if (!reader->info().direct && !remote) {
    speeds.no_cold_because = reader->info().file_system + " can't be read past the page cache";
  } else if (!reader->info().direct && reader->cached_bytes(memory.size_bytes) != std::uint64_t{0}) {
    speeds.no_cold_because = "some of it may be in the page cache, which can't be bypassed here";
  }
  if (!speeds.no_cold_because.empty()) return {};
  Result<Steps> steps = read_in_steps(check, *reader, memory, reader->info().direct);
  if (!steps) return steps.error();
  if (steps->longest.bytes == 0) {
    speeds.no_cold_because = "nothing arrived within the time";
  } else if (went_by(steps->longest, {Route::cached, Route::cached_staged})) {
    speeds.no_cold_because = "it still came from the page cache";
  } else {
    speeds.cold = std::move(steps->longest);
  }
  return {};
}

Status measure_cached(const SpeedCheck& check, Region memory, bool may_warm, Speeds& speeds) {
  Result<Reader> reader = Reader::create(check, Cache::automatic);
  if (!reader) return reader.error();
  const bool in_memory = reader->info().locality == Locality::memory;
  if (!reader->info().page_cache && !in_memory) {
    speeds.no_cached_because = "it has no page cache";
    return {};
  }
  std::uint64_t warm_bytes = memory.size_bytes;
  if (!in_memory && may_warm && reader->cached_bytes(memory.size_bytes) != memory.size_bytes) {
    const Result<std::uint64_t> warmed = warm(check, memory);
    if (!warmed) return warmed.error();
    if (*warmed == 0) {
      speeds.no_cached_because = "nothing arrived within the time";
      return {};
    }
    warm_bytes = *warmed;
  }
  std::array<Report, cached_rounds> rounds;
  for (Report& round : rounds) {
    Result<Report> report = reader->read(memory.part(0, warm_bytes));
    if (!report) return report.error();
    // What comes over a network is read the same way, cached or not.
    const bool cached = went_by(*report, {Route::cached, Route::cached_staged}) ||
                        (report->bytes == warm_bytes && reader->cached_bytes(warm_bytes) == warm_bytes);
    if (!cached) {
      speeds.no_cached_because = "it does not stay in the page cache, or the kernel does not say";
      return {};
    }
    round = std::move(*report);
  }
  std::ranges::sort(rounds, {}, [](const Report& one) { return one.seconds / static_cast<double>(one.bytes); });
  speeds.cached = std::move(rounds[cached_rounds / 2]);
  return {};
}

std::uint64_t front_bytes(const SpeedCheck& check, const Store& store, const Context& owner) {
  return std::min({check.size_bytes, store.info().size_bytes, owner.machine().memory_bytes / 4});
}

}  // namespace

Result<Speeds> measure_speeds(const SpeedCheck& given) {
  if (Status status = check_seconds("SpeedCheck::seconds", given.seconds); !status) return std::move(status).error();
  SpeedCheck check = given;
  // Absolute, it is a path to everybody, whatever it looks like.
  std::error_code ignored;
  check.path = std::filesystem::absolute(given.path, ignored).string();
  check.keep_going = keep_going_by("SpeedCheck::keep_going", given.keep_going);

  // The memory is the same for both, so it belongs to neither, and pinned memory leaves staging its budget.
  Options options = check.options;
  options.pinned_budget_bytes += check.size_bytes;
  Result<Context> owner = Context::create(options);
  if (!owner) return owner.error();
  const Result<Store> store = owner->open(check.path);
  if (!store) return store.error();
  const std::uint64_t size = front_bytes(check, *store, *owner);
  Speeds speeds{.no_cold_because = "it is empty", .no_cached_because = "it is empty"};
  if (size == 0) return speeds;
  Result<Buffer> memory = owner->allocate(check.memory, size);
  if (!memory) return memory.error();
  // The first touch of fresh memory is the kernel's cost, not the store's.
  if (check.memory.host_accessible()) std::memset(memory->data(), 0, memory->size_bytes());

  speeds = {};
  const Absence absence(check.path, *store, size);
  Status done = measure_cold(check, memory->region(), speeds);
  // A store that is too slow to be read within the time is not read again as a whole.
  const std::uint64_t seen = speeds.cold ? speeds.cold->bytes : size;
  if (done) done = measure_cached(check, memory->region().part(0, seen), absence.is_known(), speeds);
  if (done) return speeds;
  if (done.error().code != Code::abandoned) return std::move(done).error();
  if (!check.keep_going()) return stopped();
  const std::string stuck = "reads did not come back in time: the disk, or the server of its file system, hangs";
  if (!speeds.cold && speeds.no_cold_because.empty()) speeds.no_cold_because = stuck;
  speeds.no_cached_because = stuck;
  return speeds;
}

}  // namespace penstock
