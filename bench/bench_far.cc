// bench_far: reads from a store that answers after a fixed time, however much is asked of it at once:
//   run SECONDS     reads, two requests at a time, and tells how much
//   small SECONDS   single reads of 256 KiB of a file, one after another, on the same lane as the far ones
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "api/context_builder.h"
#include "arguments.h"
#include "engines/uring/engine.h"
#include "rounds.h"
#include "support/far_engine.h"
#include "tally.h"

namespace {

using bench::Json;
using bench::value_of;
using penstock::Direction;
using penstock::Range;
using penstock::Region;

struct Settings {
  double latency_ms = 20;
  std::uint64_t size_bytes = 1 << 30;
  std::string options_json = "{}";
  std::string file;
  bool busy = false;  // far requests run while single reads are timed
};

class Far {
 public:
  explicit Far(const Settings& settings)
      : settings_(settings),
        context_(make_context(settings)),
        far_(value_of(context_.open("far:" + std::to_string(settings.size_bytes)))),
        memory_(2 * settings.size_bytes) {}

  Json run(double seconds) {
    bench::Tally tally;
    const double start = bench::now();
    std::deque<penstock::Ticket> live;
    std::uint64_t begun = 0;
    const auto begin = [&] { live.push_back(read_far(begun++ % 2)); };
    begin();
    begin();
    while (bench::now() - start < seconds) {
      tally.add(finish(live));
      begin();
    }
    while (!live.empty()) tally.add(finish(live));
    return tally.json(bench::now() - start, begun);
  }

  Json small(double seconds) {
    if (settings_.file.empty()) bench::fail("single reads need --file");
    const penstock::Store file = value_of(context_.open(settings_.file));
    std::vector<std::byte> memory(256 << 10);
    std::deque<penstock::Ticket> live;
    std::vector<double> each;
    const double start = bench::now();
    std::uint64_t at = 0;
    while (bench::now() - start < seconds) {
      while (settings_.busy && live.size() < 2) live.push_back(read_far(live.size()));
      if (!live.empty() && live.front().ended()) static_cast<void>(finish(live));
      at = (at + memory.size()) % (file.info().size_bytes - memory.size());
      const Range range{&file, at, Region::host(memory.data(), memory.size())};
      const double begun = bench::now();
      if (value_of(context_.submit(Direction::read, {&range, 1})).wait() != penstock::Outcome::done) {
        bench::fail("a single read failed");
      }
      each.push_back(bench::now() - begun);
    }
    while (!live.empty()) static_cast<void>(finish(live));
    std::sort(each.begin(), each.end());
    return {{"p50_seconds", each[each.size() / 2]}, {"reads", each.size()}};
  }

  Json check(double) {
    run(0);
    const bool right = penstock::test::FarEngine::holds_content(memory_.bytes().first(settings_.size_bytes), 0);
    return {{"checksum", right ? "the store's bytes" : "other bytes"}, {"expected", "the store's bytes"}};
  }

  const penstock::Options& options() const { return context_.options(); }

 private:
  static penstock::Context make_context(const Settings& settings) {
    penstock::engine::Table table;
    table.push_back(
        std::make_unique<penstock::test::FarEngine>(penstock::duration_from_seconds(settings.latency_ms / 1e3)));
    table.push_back(penstock::uring::make_engine());
    const auto options = value_of(penstock::Options::from_json(settings.options_json));
    return value_of(penstock::ContextBuilder::build(std::move(table), options));
  }
  penstock::Ticket read_far(std::uint64_t half) {
    const auto place = memory_.bytes().subspan(half * settings_.size_bytes, settings_.size_bytes);
    const Range range{&far_, 0, Region::host(place.data(), place.size())};
    return value_of(context_.submit(Direction::read, {&range, 1}));
  }
  static penstock::Report finish(std::deque<penstock::Ticket>& live) {
    const penstock::Ticket first = live.front();
    live.pop_front();
    first.wait();
    return first.report();
  }

  const Settings settings_;
  penstock::Context context_;
  const penstock::Store far_;
  const bench::Memory memory_;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Reads from a store that is far away, as run.py tells it to.");
  arguments.add("--latency-ms", settings.latency_ms, "what every operation takes");
  arguments.add("--size", settings.size_bytes, "of one request");
  arguments.add("--options", settings.options_json, "of the Context, as JSON");
  arguments.add("--file", settings.file, "for single reads");
  arguments.add_flag("--busy", settings.busy, "far requests run meanwhile");
  arguments.parse(argc, argv);
  Far far(settings);
  bench::converse({{"options", Json::parse(far.options().to_json())}},
                  {{"run", [&](double s) { return far.run(s); }},
                   {"small", [&](double s) { return far.small(s); }},
                   {"check", [&](double s) { return far.check(s); }}});
}
