#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
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

// The front of a file in the page cache, for as long as this lives; then it is as it was.
class Warmth {
 public:
  explicit Warmth(const SpeedCheck& check) : check_(check), fd_(open(check.path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Warmth() {
    if (fd_ < 0) return;
    // The server of the file may have stopped answering meanwhile, and is asked by both.
    static_cast<void>(comes_back(patience_seconds, [fd = fd_, drop_bytes = static_cast<off_t>(drop_bytes_)] {
      if (drop_bytes != 0) static_cast<void>(posix_fadvise(fd, 0, drop_bytes, POSIX_FADV_DONTNEED));
      close(fd);
    }));
  }
  Warmth(const Warmth&) = delete;
  Warmth& operator=(const Warmth&) = delete;

  // Says how many bytes are there then. `drop`: they are nobody's, and go again.
  Result<std::uint64_t> add(Region memory, bool drop) {
    if (fd_ < 0) return system_error(errno, "open " + check_.path);
    Result<Reader> reader = Reader::create(check_, Cache::keep);
    if (!reader) return reader.error();
    if (drop) drop_bytes_ = memory.size_bytes;
    const Result<Steps> steps = read_in_steps(check_, *reader, memory, true);
    if (!steps) return steps.error();
    return steps->bytes;
  }

 private:
  const SpeedCheck& check_;
  int fd_;
  std::uint64_t drop_bytes_ = 0;
};

Status measure_cold(const SpeedCheck& check, Region memory, Speeds& speeds) {
  Result<Reader> reader = Reader::create(check, Cache::bypass);
  if (!reader) return reader.error();
  const bool remote = reader->info().locality == Locality::network || reader->info().locality == Locality::fuse;
  if (reader->info().locality == Locality::memory) {
    speeds.no_cold_because = reader->info().file_system + " is memory, there is nothing colder";
  } else if (!reader->info().direct && !remote) {
    speeds.no_cold_because = reader->info().file_system + " can't be read past the page cache";
  } else if (!reader->info().direct && reader->cached_bytes(memory.size_bytes) != std::uint64_t{0}) {
    speeds.no_cold_because = "some of it may be in the page cache, which can't be gone round here";
  }
  if (!speeds.no_cold_because.empty()) return {};
  Result<Steps> steps = read_in_steps(check, *reader, memory, reader->info().direct);
  if (!steps) return steps.error();
  if (steps->longest.bytes == 0) {
    speeds.no_cold_because = "nothing arrived within the time";
  } else if (went_by(steps->longest, {Route::cached, Route::cached_staged})) {
    speeds.no_cold_because = "it came from the page cache all the same";
  } else {
    speeds.cold = std::move(steps->longest);
  }
  return {};
}

Status measure_cached(const SpeedCheck& check, Region memory, Speeds& speeds) {
  Result<Reader> reader = Reader::create(check, Cache::automatic);
  if (!reader) return reader.error();
  const bool in_memory = reader->info().locality == Locality::memory;
  if (!reader->info().page_cache && !in_memory) {
    speeds.no_cached_because = "it has no page cache";
    return {};
  }
  const std::optional<std::uint64_t> before = reader->cached_bytes(memory.size_bytes);
  Warmth warmth(check);
  std::uint64_t warm_bytes = memory.size_bytes;
  if (!in_memory && before != memory.size_bytes) {
    const Result<std::uint64_t> warmed = warmth.add(memory, before == std::uint64_t{0});
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
      speeds.no_cached_because = "it does not stay in the page cache, or the kernel does not tell";
      return {};
    }
    round = std::move(*report);
  }
  std::ranges::sort(rounds, {}, [](const Report& one) { return one.seconds / static_cast<double>(one.bytes); });
  speeds.cached = std::move(rounds[cached_rounds / 2]);
  return {};
}

Result<std::uint64_t> front_bytes(const SpeedCheck& check, Context& owner) {
  const Result<Store> store = owner.open(check.path);
  if (!store) return store.error();
  return std::min({check.size_bytes, store->info().size_bytes, owner.machine().memory_bytes / 4});
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
  const Result<std::uint64_t> size = front_bytes(check, *owner);
  if (!size) return size.error();
  Speeds speeds{.no_cold_because = "it is empty", .no_cached_because = "it is empty"};
  if (*size == 0) return speeds;
  Result<Buffer> memory = owner->allocate(check.memory, *size);
  if (!memory) return memory.error();
  // The first touch of fresh memory is the kernel's cost, not the store's.
  if (check.memory.host_accessible()) std::memset(memory->data(), 0, memory->size_bytes());

  speeds = {};
  Status done = measure_cold(check, memory->region(), speeds);
  // A store that is too slow to be read within the time is not read again as a whole.
  const std::uint64_t seen = speeds.cold ? speeds.cold->bytes : *size;
  if (done) done = measure_cached(check, memory->region().part(0, seen), speeds);
  if (done) return speeds;
  if (done.error().code != Code::abandoned) return std::move(done).error();
  if (!check.keep_going()) return stopped();
  const std::string stuck = "reads did not come back in time: the disk, or the server of its file system, hangs";
  if (!speeds.cold && speeds.no_cold_because.empty()) speeds.no_cold_because = stuck;
  speeds.no_cached_because = stuck;
  return speeds;
}

}  // namespace penstock
