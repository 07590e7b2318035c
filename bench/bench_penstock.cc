// bench_penstock: one Context that loads a file in one of three ways, again and again, as run.py tells it to:
//   load     the range [offset, offset + size) as one request of one range
//   ranges   requests of many ranges at random places
//   tickets  single random ranges as live tickets; the oldest is waited for, and resubmitted
#include <penstock/penstock.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"
#include "content.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;
using bench::Tally;
using bench::value_of;
using penstock::Direction;
using penstock::Range;
using penstock::Region;

struct Settings {
  std::string file;
  std::string mode = "load";
  std::string options_json = "{}";
  std::string memory = "host";
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t range_bytes = 4096;
  std::uint64_t ranges = 64;       // in a request, or live tickets
  std::uint64_t destinations = 0;  // places in memory that requests take turns with
  bool evict = false;
  bool watch_memory = false;
};

// Samples the pinned bytes of a Context while it works, and keeps the highest.
class MemoryWatch {
 public:
  explicit MemoryWatch(const penstock::Context& context)
      : thread_([this, &context](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            highest_ = std::max(highest_.load(), context.statistics().pinned_bytes);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}

  std::uint64_t highest() const { return highest_; }

 private:
  std::atomic<std::uint64_t> highest_{0};
  std::jthread thread_;  // last: it uses the above
};

class Bench {
 public:
  Bench(const Settings& settings, penstock::Context context)
      : settings_(settings), context_(std::move(context)), store_(value_of(context_.open(settings.file))) {
    const std::uint64_t file_bytes = store_.info().size_bytes;
    if (settings_.offset > file_bytes) bench::fail("the offset lies past the end of " + settings_.file);
    if (settings_.size_bytes == 0) settings_.size_bytes = file_bytes - settings_.offset;
    if (settings_.size_bytes > file_bytes - settings_.offset) bench::fail(settings_.file + " is shorter than --size");
    settings_.destinations = std::max(settings_.destinations, settings_.ranges);
    allocate(settings_.mode == "load" ? settings_.size_bytes : settings_.destinations * settings_.range_bytes);
    if (settings_.watch_memory) watch_.emplace(context_);
  }

  Json run(double seconds) {
    if (settings_.mode == "load") return run_loads(seconds);
    if (settings_.mode == "ranges") return run_ranges(seconds);
    return run_tickets(seconds);
  }

  // Moves once more, into memory that held something else, and compares with what the file must hold.
  Json check() {
    std::memset(memory_.data, 0xa5, memory_.size_bytes);
    Json result = run(0);
    penstock::Checksum found;
    penstock::Checksum expected;
    std::vector<std::byte> content;
    for (const Range& range : moved_) {
      found.add({range.memory.data, range.memory.size_bytes});
      for (std::uint64_t done = 0; done < range.memory.size_bytes; done += content.size()) {
        content.resize(std::min<std::uint64_t>(1 << 20, range.memory.size_bytes - done));
        bench::fill_content(range.offset + done, content);
        expected.add(content);
      }
    }
    result["checksum"] = found.hex();
    result["expected"] = expected.hex();
    return result;
  }

  Json ready(double start) const {
    const penstock::StoreInfo& info = store_.info();
    return {{"setup_seconds", bench::now() - start},
            {"version", std::string(penstock::version())},
            {"options", Json::parse(context_.options().to_json())},
            {"explain", context_.explain(store_)},
            {"file_system", info.file_system},
            {"locality", std::string(penstock::locality_name(info.locality))},
            {"memory_bytes", memory_.size_bytes}};
  }

 private:
  void allocate(std::size_t size_bytes) {
    if (settings_.memory == "pinned") {
      buffer_ = value_of(context_.allocate(penstock::Domain::pinned(), size_bytes));
      memory_ = buffer_.region();
    } else {
      plain_memory_ = std::make_unique<bench::Memory>(size_bytes);
      memory_ = Region::host(plain_memory_->bytes().data(), size_bytes);
    }
  }

  Json with_memory(Json result) const {
    if (watch_) result["pinned_bytes_highest"] = watch_->highest();
    return result;
  }

  Json run_loads(double seconds) {
    moved_ = {{&store_, settings_.offset, memory_}};
    Tally tally;
    double spent = 0;
    std::uint64_t loads = 0;
    do {
      if (settings_.evict) bench::evict(settings_.file);
      const double start = bench::now();
      tally.add(context_.read(store_, settings_.offset, memory_));
      spent += bench::now() - start;
      ++loads;
    } while (spent < seconds);
    return with_memory(tally.json(spent, loads));
  }

  Json run_ranges(double seconds) {
    moved_.resize(settings_.ranges);
    Tally tally;
    const double start = bench::now();
    std::uint64_t operations = 0;
    do {
      draw_ranges();
      tally.add(context_.transfer(Direction::read, moved_));
      operations += moved_.size();
    } while (bench::now() - start < seconds);
    return with_memory(tally.json(bench::now() - start, operations));
  }

  Json run_tickets(double seconds) {
    moved_.resize(settings_.ranges);
    std::vector<penstock::Ticket> tickets(moved_.size());
    Tally tally;
    const double start = bench::now();
    std::uint64_t operations = 0;
    const auto submit = [&](std::size_t i) {
      moved_[i] = draw_range(i);
      tickets[i] = value_of(context_.submit(Direction::read, {&moved_[i], 1}));
      ++operations;
    };
    for (std::size_t i = 0; i < tickets.size(); ++i) submit(i);
    while (bench::now() - start < seconds) {
      penstock::Ticket::wait_any(tickets, std::chrono::seconds(10));
      for (std::size_t i = 0; i < tickets.size(); ++i) {
        if (!tickets[i].ended()) continue;
        tally.add_bytes_of(tickets[i]);
        submit(i);
      }
    }
    for (const penstock::Ticket& ticket : tickets) {
      ticket.wait();
      tally.add(ticket.report());
    }
    return with_memory(tally.json(bench::now() - start, operations));
  }

  // A request takes the next destinations in turn, so that requests of any size touch the same memory in the long run.
  void draw_ranges() {
    if (next_destination_ + moved_.size() > settings_.destinations) next_destination_ = 0;
    for (Range& range : moved_) range = draw_range(next_destination_++);
  }

  Range draw_range(std::uint64_t destination) {
    const std::uint64_t places = settings_.size_bytes / settings_.range_bytes;
    return {&store_, settings_.offset + random_() % places * settings_.range_bytes,
            memory_.part(destination * settings_.range_bytes, settings_.range_bytes)};
  }

  Settings settings_;
  std::unique_ptr<bench::Memory> plain_memory_;  // declared before the Context: it must outlive it
  penstock::Context context_;
  penstock::Store store_;
  penstock::Buffer buffer_;
  Region memory_;
  std::vector<Range> moved_;  // by the last request, or by the last lap of tickets
  std::uint64_t next_destination_ = 0;
  std::mt19937_64 random_{std::random_device{}()};
  std::optional<MemoryWatch> watch_;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Reads a file with Penstock; answers commands on its standard input.");
  arguments.add("file", settings.file).required();
  arguments.add("--mode", settings.mode).one_of({"load", "ranges", "tickets"});
  arguments.add("--options", settings.options_json, "of the Context, as JSON");
  arguments.add("--memory", settings.memory).one_of({"host", "pinned"});
  arguments.add("--offset", settings.offset, "where the part of the file that is read begins");
  arguments.add("--size", settings.size_bytes, "of that part; to the end of the file by default");
  arguments.add("--range-bytes", settings.range_bytes).positive();
  arguments.add("--ranges", settings.ranges, "in a request, or live tickets").positive();
  arguments.add("--destinations", settings.destinations, "places in memory that requests take turns with");
  arguments.add_flag("--evict", settings.evict,
                     "drop the file from the page cache before every load, outside the time");
  arguments.add_flag("--watch-memory", settings.watch_memory, "report the most pinned bytes seen");
  arguments.parse(argc, argv);

  const double start = bench::now();
  const penstock::Options options = value_of(penstock::Options::from_json(settings.options_json));
  Bench session(settings, value_of(penstock::Context::create(options)));
  bench::converse(session.ready(start), {{"run", [&](double seconds) { return session.run(seconds); }},
                                         {"check", [&](double) { return session.check(); }}});
}
