// Loads: plain reads and copies, and every engine with every way of using the page cache.
#include <algorithm>
#include <memory>

#include "services/measuring/races.h"

namespace penstock::measuring {

namespace {

constexpr int most_tries = 3;
constexpr double sweep_share = 0.2;

std::uint64_t bytes_by(const Report& report, std::initializer_list<Route> routes) {
  std::uint64_t bytes = 0;
  for (const Route route : routes) bytes += report.routes[static_cast<std::size_t>(route)];
  return bytes;
}

// Whether the bytes came from where the state says they are.
bool came_from(RaceState state, const Report& report) {
  if (state == RaceState::cold) return bytes_by(report, {Route::cached, Route::cached_staged}) == 0;
  return bytes_by(report, {Route::direct, Route::direct_staged, Route::gds, Route::p2pdma}) == 0;
}

struct Load {
  Report report;
  double cpu_seconds = 0;
};
Result<Load> load_once(Session& session, Subject& subject, RaceState state) {
  for (int i = 0; i < most_tries; ++i) {
    if (Status reached = session.reach(state); !reached) return std::move(reached).error();
    const double cpu = cpu_seconds();
    Result<Report> report = move_front(subject, Direction::read, session.memory(), session.job().keep_going);
    if (!report) return report.error();
    if (came_from(state, *report)) return Load{std::move(*report), cpu_seconds() - cpu};
  }
  return Error{
      .code = Code::unsupported,
      .message = "the bytes did not come " +
                 std::string(state == RaceState::cold ? "from the device alone" : "from the page cache alone")};
}

Result<Sample> load_for(Session& session, Subject& subject, RaceState state, double seconds) {
  Sample sample;
  while (sample.seconds < seconds) {
    const Result<Load> load = load_once(session, subject, state);
    if (!load) return load.error();
    sample.bytes += load->report.bytes;
    sample.seconds += load->report.seconds;
    sample.cpu_seconds += load->cpu_seconds;
  }
  return sample;
}

Result<Contender> make_loader(Session& session, RaceState state, const std::string& engine, Cache cache) {
  const std::uint64_t before = own_memory_bytes();
  Options options;
  options.engine = engine;
  options.cache = cache;
  Result<Subject> made = make_subject(session.job().path, options, session.memory());
  if (!made) return made.error();
  const auto subject = std::make_shared<Subject>(std::move(*made));  // shared: a std::function must be copyable

  // The first load starts threads and makes slots; it is the one whose bytes are compared.
  if (Status spoilt = session.spoil(); !spoilt) return std::move(spoilt).error();
  const Result<Load> load = load_once(session, *subject, state);
  if (!load) return load.error();
  const Result<bool> right = session.memory_is_right();
  if (!right) return right.error();
  const std::uint64_t after = own_memory_bytes();
  return Contender{
      .row = {.name = engine + ", " + std::string(cache_name(cache)),
              .pinned_bytes = subject->context.statistics().pinned_bytes,
              .memory_bytes = after - std::min(before, after),
              .routes = load->report.routes,
              .reason = load->report.reason,
              .bytes_right = *right},
      .round = [&session, subject, state](double seconds) { return load_for(session, *subject, state, seconds); }};
}

// Plain reads in one setting; past the page cache wherever the store lets them.
Contender make_plain(Session& session, RaceState state, PlainSetting setting) {
  setting.chunk_bytes = std::min(setting.chunk_bytes, session.size_bytes());
  const bool direct = state == RaceState::cold && session.direct_fd() >= 0;
  const bool in_place = state == RaceState::cached && !session.on_gpu();
  PlainJob job{.fd = direct ? session.direct_fd() : session.fd(),
               .size_bytes = session.size_bytes(),
               .setting = setting,
               .memory = in_place ? std::span(session.memory().data, session.size_bytes()) : session.buffers()};
  return {.row = {.name = direct ? "plain direct reads" : "plain reads", .setting = setting.text(), .plain = true},
          .round = [&session, state, job, once = state == RaceState::cold && !direct](double seconds) mutable {
            Sample sample;
            do {
              if (Status reached = session.reach(state); !reached) return Result<Sample>(std::move(reached).error());
              job.seconds = once ? 0 : seconds;
              Result<Sample> part = run_plain(job, session.job().keep_going);
              if (!part) return part;
              sample.bytes += part->bytes;
              sample.seconds += part->seconds;
              sample.cpu_seconds += part->cpu_seconds;
            } while (sample.seconds < seconds);
            return Result<Sample>(sample);
          }};
}

Contender make_copies(Session& session) {
  const Region pinned{session.buffers().data(), session.buffers().size(), Domain::pinned()};
  const std::uint64_t length = std::min(pinned.size_bytes, session.memory().size_bytes);
  return {.row = {.name = "pinned copies", .setting = std::to_string(length / mib) + " MiB at a time", .plain = true},
          .round = [&session, pinned](double seconds) {
            return run_copies(session.memory(), pinned, seconds, session.job().keep_going);
          }};
}

// The best of some settings. The three best of short runs are run again, so that one lucky sample does not decide.
Result<PlainSetting> sweep(Session& session, double seconds) {
  struct Tried {
    PlainSetting setting;
    double speed = 0;
  };
  std::vector<Tried> all;
  for (const std::uint32_t threads : {4U, 8U, 16U, 32U}) {
    for (const std::uint64_t chunk : {mib, largest_chunk_bytes}) all.push_back({{threads, chunk}});
  }
  const double each = seconds / static_cast<double>(all.size() + 3);
  const auto measure_first = [&](std::size_t count) -> Status {
    for (std::size_t i = 0; i < count; ++i) {
      session.say("plain reads with " + all[i].setting.text());
      const Result<Sample> sample = make_plain(session, RaceState::cold, all[i].setting).round(each);
      if (!sample) return sample.error();
      all[i].speed = static_cast<double>(sample->bytes) / sample->seconds;
    }
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(count);
    std::sort(all.begin(), end, [](const Tried& a, const Tried& b) { return a.speed > b.speed; });
    return {};
  };
  for (const std::size_t count : {all.size(), std::size_t{3}}) {
    if (Status measured = measure_first(count); !measured) return std::move(measured).error();
  }
  return all.front().setting;
}

// The yardstick first. Where bytes go to a GPU out of the page cache, that is the bus.
Result<std::vector<Contender>> make_yardsticks(Session& session, RaceState state, double seconds) {
  std::vector<Contender> made;
  if (state == RaceState::cold) {
    const Result<PlainSetting> best = sweep(session, seconds);
    if (!best) return best.error();
    made.push_back(make_plain(session, state, *best));
    return made;
  }
  if (session.on_gpu()) made.push_back(make_copies(session));
  made.push_back(make_plain(session, state, {.threads = session.owner().options().lanes}));
  return made;
}

// Why an engine would do the same with another use of the page cache; nothing where it would not.
std::string same_as(RaceState state, Cache cache) {
  if (state == RaceState::cold) return "";
  if (cache == Cache::keep) return "like auto where all bytes are cached already";
  if (cache == Cache::bypass) return "reads from the device what is cached too: see cold";
  return "";
}

}  // namespace

Result<Race> race_loads(Session& session, RaceState state, double seconds) {
  session.say(std::string(race_state_name(state)));
  if (Status reached = session.reach(state); !reached) return std::move(reached).error();
  const double start = now();
  Result<std::vector<Contender>> contenders = make_yardsticks(session, state, seconds * sweep_share);
  if (!contenders) return contenders.error();
  std::vector<LeftOut> left_out;
  for (const EngineInfo& engine : session.owner().engines()) {
    if (!engine.available) {
      left_out.push_back({engine.name, engine.reason});
      continue;
    }
    for (const Cache cache : {Cache::automatic, Cache::keep, Cache::bypass}) {
      const std::string name = engine.name + ", " + std::string(cache_name(cache));
      if (const std::string why = same_as(state, cache); !why.empty()) {
        left_out.push_back({name, why});
        continue;
      }
      session.say(std::string(race_state_name(state)) + ", checking the bytes of " + name);
      Result<Contender> contender = make_loader(session, state, engine.name, cache);
      if (!contender && contender.error().code == Code::cancelled) return contender.error();
      if (contender) {
        contenders->push_back(std::move(*contender));
      } else {
        left_out.push_back({name, contender.error().message});
      }
    }
  }
  const double left = std::max(seconds - (now() - start), seconds / 4);
  Result<Race> race =
      run_race(state, std::move(*contenders), {.seconds = left}, [&](const std::string& what) { session.say(what); });
  if (race) race->left_out.insert(race->left_out.end(), left_out.begin(), left_out.end());
  return race;
}

}  // namespace penstock::measuring
