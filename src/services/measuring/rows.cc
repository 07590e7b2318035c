// Random rows of a table in the page cache: copied by hand from a mapping, and gathered.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "penstock/gpu.h"
#include "penstock/rows.h"
#include "services/measuring/races.h"

namespace penstock::measuring {

namespace {

constexpr std::uint64_t row_bytes = 256;
constexpr std::uint64_t most_rows = 1'000'000;  // in one gather
constexpr std::size_t piece_rows = 4096;        // copied by a thread at a time
constexpr std::size_t rows_ahead = 16;

using Numbers = std::vector<std::uint64_t>;

// The front of the store, and the numbers of random rows of it.
class Table {
 public:
  static Result<std::shared_ptr<const Table>> map(const Session& session) {
    void* const data = ::mmap(nullptr, session.size_bytes(), PROT_READ, MAP_SHARED | MAP_POPULATE, session.fd(), 0);
    if (data == MAP_FAILED) return system_error(errno, "map " + session.job().path);
    return std::shared_ptr<const Table>(new Table(static_cast<const std::byte*>(data), session.size_bytes()));
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table() { ::munmap(const_cast<std::byte*>(data_), size_bytes_); }

  const Numbers& numbers() const { return numbers_; }
  std::uint64_t rows() const { return size_bytes_ / row_bytes; }
  const std::byte* row(std::size_t place) const { return data_ + numbers_[place] * row_bytes; }

 private:
  Table(const std::byte* data, std::uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {
    std::mt19937_64 random(std::random_device{}());
    numbers_.resize(std::min(most_rows, rows()));
    for (std::uint64_t& number : numbers_) number = random() % rows();
  }

  const std::byte* const data_;
  const std::uint64_t size_bytes_;
  Numbers numbers_;
};

void copy_piece(const Table& table, std::size_t first, std::size_t end, std::byte* to) {
  for (std::size_t i = first; i < end; ++i) {
    if (i + rows_ahead < end) {
      for (std::size_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(table.row(i + rows_ahead) + at);
    }
    std::memcpy(to + (i - first) * row_bytes, table.row(i), row_bytes);
  }
}

// All rows again and again until the time is over, by threads of their own; to a GPU through a piece of pinned memory
// each.
Result<Sample> copy_by_hand(const Session& session, const Table& table, std::uint32_t threads, double seconds) {
  constexpr std::size_t piece_bytes = piece_rows * row_bytes;
  if (!session.job().keep_going()) return stopped();
  const std::size_t pieces = (table.numbers().size() + piece_rows - 1) / piece_rows;
  const double cpu = cpu_seconds();
  const double start = now();
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<bool> is_failing{false};
  Status status;
  const auto work = [&](std::uint32_t thread) {
    const std::span<std::byte> slot =
        session.on_gpu() ? session.buffers().subspan(thread * piece_bytes, piece_bytes) : std::span<std::byte>();
    do {  // once at least: a busy machine may let a thread begin when the time is over
      const std::size_t first = next.fetch_add(1) % pieces * piece_rows;
      const std::size_t end = std::min(first + piece_rows, table.numbers().size());
      const Region place = session.memory().part(first * row_bytes, (end - first) * row_bytes);
      copy_piece(table, first, end, session.on_gpu() ? slot.data() : place.data);
      bytes += place.size_bytes;
      if (!session.on_gpu()) continue;
      Status copied = copy(place, Region{slot.data(), place.size_bytes, Domain::pinned()});
      if (!copied && !is_failing.exchange(true)) status = std::move(copied);
    } while (!is_failing && now() - start < seconds);
  };
  {
    std::vector<std::jthread> all;
    for (std::uint32_t i = 1; i < threads; ++i) all.emplace_back(work, i);
    work(0);
  }
  if (!status) return std::move(status).error();
  return Sample{.bytes = bytes, .seconds = now() - start, .cpu_seconds = cpu_seconds() - cpu};
}

Contender make_by_hand(const Session& session, std::shared_ptr<const Table> table, std::uint32_t threads) {
  return {.row = {.name = "rows copied from a mapping", .setting = std::to_string(threads) + " threads", .plain = true},
          .round = [&session, table = std::move(table), threads](double seconds) {
            return copy_by_hand(session, *table, threads, seconds);
          }};
}

Result<bool> rows_are_right(const Session& session, const Table& table) {
  std::vector<std::byte> window(piece_rows * row_bytes);
  for (std::size_t first = 0; first < table.numbers().size(); first += piece_rows) {
    const std::size_t end = std::min(first + piece_rows, table.numbers().size());
    const Region here = Region::host(window.data(), (end - first) * row_bytes);
    if (Status copied = copy(here, session.memory().part(first * row_bytes, here.size_bytes)); !copied) {
      return std::move(copied).error();
    }
    for (std::size_t i = first; i < end; ++i) {
      if (std::memcmp(window.data() + (i - first) * row_bytes, table.row(i), row_bytes) != 0) return false;
    }
  }
  return true;
}

// What gathers: shared, since a std::function must be copyable.
struct Gathering {
  Subject subject;
  Rows rows;
};

Status gather(const Session& session, const Table& table, const Gathering& gathering, RouteBytes* routes = nullptr) {
  const Region memory = session.memory().part(0, table.numbers().size() * row_bytes);
  const RowsReport report = gathering.rows.gather(table.numbers(), memory);
  if (!report.ok()) return *report.error;
  if (report.cold_rows != 0) {
    return Error{Code::unsupported, 0, "the rows did not come from the page cache alone", "measure a file of a disk"};
  }
  if (routes != nullptr) *routes = report.filling.routes;
  return {};
}

// Whole gathers until the time is over.
Result<Sample> gather_for(const Session& session, const Table& table, const Gathering& gathering, double seconds) {
  const double cpu = cpu_seconds();
  const double start = now();
  Sample sample;
  do {
    if (!session.job().keep_going()) return stopped();
    if (Status status = gather(session, table, gathering); !status) return std::move(status).error();
    sample.bytes += table.numbers().size() * row_bytes;
    sample.seconds = now() - start;
  } while (sample.seconds < seconds);
  sample.cpu_seconds = cpu_seconds() - cpu;
  return sample;
}

Result<Contender> make_gather(Session& session, const std::shared_ptr<const Table>& table) {
  const std::uint64_t before = own_memory_bytes();
  Result<Subject> subject = make_subject(session.job().path, {}, session.memory());
  if (!subject) return subject.error();
  const auto gathering = std::make_shared<Gathering>(Gathering{std::move(*subject), {}});
  Result<Rows> rows =
      Rows::open_raw(gathering->subject.context, session.job().path, {.row_bytes = row_bytes, .count = table->rows()});
  if (!rows) return rows.error();
  gathering->rows = std::move(*rows);
  // The first gather starts threads and looks at the page cache; it is the one whose bytes are compared.
  if (Status spoilt = session.spoil(); !spoilt) return std::move(spoilt).error();
  RouteBytes routes{};
  if (Status status = gather(session, *table, *gathering, &routes); !status) return std::move(status).error();
  const Result<bool> right = rows_are_right(session, *table);
  if (!right) return right.error();
  const std::uint64_t after = own_memory_bytes();
  return Contender{.row = {.name = "penstock, gather",
                           .pinned_bytes = gathering->subject.context.statistics().pinned_bytes,
                           .memory_bytes = after - std::min(before, after),
                           .routes = routes,
                           .bytes_right = *right},
                   .round = [&session, table, gathering](double seconds) {
                     return gather_for(session, *table, *gathering, seconds);
                   }};
}

}  // namespace

Result<Race> race_rows(Session& session, double seconds) {
  session.say(std::string(race_state_name(RaceState::rows)));
  if (Status reached = session.reach(RaceState::rows); !reached) return std::move(reached).error();
  Result<std::shared_ptr<const Table>> table = Table::map(session);
  if (!table) return table.error();
  const std::uint32_t threads = std::clamp<std::uint32_t>(
      std::min<std::uint32_t>(session.owner().options().lanes, std::thread::hardware_concurrency()), 1,
      static_cast<std::uint32_t>(std::max<std::uint64_t>(1, session.buffers().size() / (piece_rows * row_bytes))));
  std::vector<Contender> contenders;
  contenders.push_back(make_by_hand(session, *table, threads));
  Result<Contender> gatherer = make_gather(session, *table);
  if (!gatherer) return gatherer.error();
  contenders.push_back(std::move(*gatherer));
  return run_race(RaceState::rows, std::move(contenders), {.seconds = seconds},
                  [&](const std::string& what) { session.say(what); });
}

}  // namespace penstock::measuring
