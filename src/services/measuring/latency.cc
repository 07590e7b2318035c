// Random reads of 4 KiB: how long each takes, and how many there are a second, with one or more under way at a time.
#include <algorithm>
#include <random>

#include "services/measuring/races.h"

namespace penstock::measuring {

namespace {

constexpr std::uint32_t block_bytes = 4096;
constexpr std::uint32_t depths[] = {1, 2, 4, 8, 16, 32, 64};
constexpr int rounds = 3;

class Reader {
 public:
  Reader(Session& session, Subject subject) : session_(session), subject_(std::move(subject)) {}

  Result<Sample> run(std::uint32_t depth, double seconds, std::vector<float>& latencies) {
    if (!session_.job().keep_going()) return stopped();
    return depth == 1 ? run_alone(seconds, latencies) : run_tickets(depth, seconds, latencies);
  }

 private:
  // One at a time, each on this thread.
  Result<Sample> run_alone(double seconds, std::vector<float>& latencies) {
    const double cpu = cpu_seconds();
    const double start = now();
    Sample sample;
    for (double at = start; at - start < seconds;) {
      const Range range = draw(0);
      const Report report = subject_.context.read(subject_.store, range.offset, range.memory);
      if (!report.ok()) return *report.error;
      const double end = now();
      latencies.push_back(static_cast<float>(end - at));
      sample.bytes += block_bytes;
      at = end;
    }
    sample.seconds = now() - start;
    sample.cpu_seconds = cpu_seconds() - cpu;
    return sample;
  }

  // So many tickets; whichever has ended is submitted again.
  Result<Sample> run_tickets(std::uint32_t depth, double seconds, std::vector<float>& latencies) {
    const double cpu = cpu_seconds();
    const double start = now();
    Sample sample;
    std::vector<Ticket> tickets(depth);
    std::vector<double> begun(depth);
    for (std::uint32_t live = depth; live != 0;) {
      if (tickets.front()) Ticket::wait_any(tickets, std::chrono::seconds(1));
      for (std::uint32_t i = 0; i < tickets.size(); ++i) {
        if (tickets[i] && !tickets[i].ended()) continue;
        const double end = now();
        if (tickets[i]) {
          if (tickets[i].wait() != Outcome::done) return *tickets[i].report().error;
          latencies.push_back(static_cast<float>(end - begun[i]));
          sample.bytes += block_bytes;
        }
        if (end - start >= seconds) {
          tickets.erase(tickets.begin() + i);
          begun.erase(begun.begin() + i--);
          --live;
          continue;
        }
        const Range range = draw(i);
        Result<Ticket> ticket = subject_.context.submit(Direction::read, {&range, 1});
        if (!ticket) return ticket.error();
        begun[i] = end;
        tickets[i] = std::move(*ticket);
      }
    }
    sample.seconds = now() - start;
    sample.cpu_seconds = cpu_seconds() - cpu;
    return sample;
  }

  Range draw(std::uint32_t place) {
    return {&subject_.store, random_() % (session_.size_bytes() / block_bytes) * block_bytes,
            session_.memory().part(place * std::size_t{block_bytes}, block_bytes)};
  }

  Session& session_;
  Subject subject_;
  std::mt19937_64 random_{std::random_device{}()};
};

struct Curve {
  LatencyCurve curve;
  std::function<Result<Sample>(std::uint32_t depth, double seconds, std::vector<float>&)> run;
  std::vector<float> latencies[std::size(depths)]{};
  std::vector<double> speeds[std::size(depths)]{};
};

LatencyPoint finish(std::uint32_t depth, std::vector<float>& latencies, std::vector<double> speeds) {
  LatencyPoint point{
      .depth = depth, .operations = latencies.size(), .operations_per_second = Series::of(std::move(speeds))};
  if (latencies.empty()) return point;
  const auto percentile = [&](double share) {
    const auto place = static_cast<std::size_t>(share * static_cast<double>(latencies.size()));
    const auto nth = latencies.begin() + static_cast<std::ptrdiff_t>(std::min(place, latencies.size() - 1));
    std::nth_element(latencies.begin(), nth, latencies.end());
    return static_cast<double>(*nth);
  };
  point.p50_seconds = percentile(0.5);
  if (latencies.size() >= 500) point.p99_seconds = percentile(0.99);
  if (latencies.size() >= 5000) point.p999_seconds = percentile(0.999);
  return point;
}

Curve make_plain(Session& session, bool direct) {
  PlainRandomJob job{.fd = direct ? session.direct_fd() : session.fd(),
                     .size_bytes = session.size_bytes(),
                     .block_bytes = block_bytes,
                     .memory = session.buffers(),
                     .to = session.on_gpu() ? session.memory() : Region()};
  const std::string name = std::string(direct ? "plain direct reads" : "plain reads") +
                           (session.on_gpu() ? " and copies" : "") + ", a thread each";
  return {.curve = {.name = name, .plain = true, .points = {}},
          .run = [&session, job](std::uint32_t depth, double seconds, std::vector<float>& latencies) mutable {
            job.depth = depth;
            job.seconds = seconds;
            return run_plain_random(job, latencies, session.job().keep_going);
          }};
}

}  // namespace

Result<LatencyRace> race_latency(Session& session, double seconds) {
  LatencyRace race{.direct = session.direct_fd() >= 0, .block_bytes = block_bytes};
  if (Status reached = session.reach(race.direct ? RaceState::cold : RaceState::cached); !reached) {
    return std::move(reached).error();
  }
  Options options;
  options.cache = race.direct ? Cache::bypass : Cache::automatic;
  Result<Subject> subject = make_subject(session.job().path, options, session.memory());
  if (!subject) return subject.error();
  Reader reader(session, std::move(*subject));
  std::vector<Curve> curves;
  curves.push_back(make_plain(session, race.direct));
  curves.push_back({.curve = {.name = "penstock", .points = {}},
                    .run = [&](std::uint32_t depth, double each, std::vector<float>& latencies) {
                      return reader.run(depth, each, latencies);
                    }});

  const double each = std::clamp(seconds / static_cast<double>(rounds * std::size(depths) * curves.size()), 0.01, 0.5);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < std::size(depths); ++i) {
      for (std::size_t turn = 0; turn < curves.size(); ++turn) {
        Curve& curve = curves[(turn + static_cast<std::size_t>(round)) % curves.size()];
        session.say("4 KiB at random, " + std::to_string(depths[i]) + " at a time: " + curve.curve.name);
        const Result<Sample> sample = curve.run(depths[i], each, curve.latencies[i]);
        if (!sample) return sample.error();
        curve.speeds[i].push_back(static_cast<double>(sample->bytes) / block_bytes / sample->seconds);
      }
    }
  }
  for (Curve& curve : curves) {
    for (std::size_t i = 0; i < std::size(depths); ++i) {
      LatencyPoint point = finish(depths[i], curve.latencies[i], curve.speeds[i]);
      point.conclusive = Series::of(curves.front().speeds[i]).spread <= conclusive_spread;
      curve.curve.points.push_back(std::move(point));
    }
    race.curves.push_back(std::move(curve.curve));
  }
  return race;
}

}  // namespace penstock::measuring
