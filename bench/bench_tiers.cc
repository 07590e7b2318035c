// bench_tiers: moves between two tiers of one folder ("move", "small"), the same by a plain direct copy with the same
// verification ("plain") and by cp -a with fsync of each file ("cp"); what opening by a name costs ("open"); and a
// catalog with many names ("names").
//
// A move deletes its source, a copy does not. So each of the four tells two times: "seconds" until the call returns, or
// the copy is there and safe; and "cleared_seconds" until the source is deleted, and its room is free. A move gives the
// room back in the background; a copy is followed by unlink or rm.
#include <fcntl.h>
#include <penstock/penstock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <vector>

#include "arguments.h"
#include "rounds.h"
#include "services/tiers/catalog.h"
#include "tally.h"

namespace {

namespace fs = std::filesystem;
using bench::Json;

struct Settings {
  std::string folder;
  std::uint64_t large_bytes = 1 << 30;
  std::uint64_t files = 10000;
  std::uint64_t file_bytes = 4096;
  std::uint64_t names = 1000000;
};

using bench::value_of;

void need(const penstock::Status& status) {
  if (!status.ok()) bench::fail(status.error().message);
}

class Bench {
 public:
  explicit Bench(Settings settings) : settings_(std::move(settings)), root_(fs::path(settings_.folder) / "tiers") {
    fs::remove_all(root_);
    std::vector<penstock::NewTier> tiers;
    for (const char* name : {"fast", "slow"}) {
      fs::create_directories(root_ / name);
      tiers.push_back({.name = name, .path = (root_ / name).string()});
    }
    tiers_ =
        value_of(penstock::Tiers::create(tiers, {.least_stay_seconds = 0}, {.catalog = (root_ / "tiers.db").string()}));
    bench::preallocate((root_ / "fast/large").string(), settings_.large_bytes);
    fill((root_ / "fast/large").string());
    need(tiers_.import("large"));
    fs::create_directory(root_ / "fast/small");
    const std::string content(settings_.file_bytes, 's');
    for (std::uint64_t i = 0; i < settings_.files; ++i) {
      const std::string path = (root_ / "fast/small" / std::to_string(i)).string();
      const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
      if (file < 0 || write(file, content.data(), content.size()) != static_cast<ssize_t>(content.size())) {
        bench::fail_errno("write " + path);
      }
      close(file);
    }
    sync();
    value_of(tiers_.import_all("fast", "small"));
  }
  ~Bench() {
    tiers_ = {};
    fs::remove_all(root_);
  }

  // The large file to the other tier.
  Json move(double) {
    const std::string to = value_of(tiers_.find("large")).tier == "fast" ? "slow" : "fast";
    return timed({{"bytes", settings_.large_bytes}}, [&] { value_of(tiers_.move("large", to)); }, [&] { see_room(); });
  }

  Json small(double) {
    const std::string to = value_of(tiers_.find("small/0")).tier == "fast" ? "slow" : "fast";
    std::vector<penstock::PlannedMove> moves;
    for (std::uint64_t i = 0; i < settings_.files; ++i)
      moves.push_back({.name = "small/" + std::to_string(i), .to = to});
    const auto move_all = [&] {
      if (value_of(tiers_.move(moves)).units != settings_.files) bench::fail("not all of the small files moved");
    };
    return timed({{"files", settings_.files}}, move_all, [&] { see_room(); });
  }

  // What a careful program does by hand: one thread reads ahead, one writes; then the copy is read and compared.
  Json plain(double) {
    const std::string from = value_of(tiers_.find("large")).path;
    const std::string to = (root_ / "copy").string();
    return timed({{"bytes", settings_.large_bytes}}, [&] { copy_by_hand(from, to); }, [&] { unlink(to.c_str()); });
  }

  // As safe as cp can be made: every file is synced, none is compared.
  Json cp(double) {
    const std::string from = fs::path(value_of(tiers_.find("small/0")).path).parent_path().string();
    const std::string to = (root_ / "copies").string();
    const auto copy = [&] {
      if (std::system(("cp -a '" + from + "' '" + to + "'").c_str()) != 0) bench::fail("cp failed");
      for (const auto& entry : fs::directory_iterator(to)) {
        const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0 || fsync(file) != 0) bench::fail_errno("sync");
        close(file);
      }
    };
    return timed({{"files", settings_.files}}, copy, [&] { fs::remove_all(to); });
  }

  // Medians, in turn: both suffer alike from what else goes on.
  Json opening(double) {
    constexpr int rounds = 2001;
    auto context = value_of(penstock::Context::create());
    need(tiers_.serve(context));
    const std::string path = value_of(tiers_.find("large")).path;
    std::array<std::vector<double>, 2> seconds;
    for (int i = 0; i < rounds; ++i) {
      for (std::size_t way = 0; way < 2; ++way) {
        const double begin = bench::now();
        const auto store = value_of(context.open(way == 0 ? path : "tier:large"));
        seconds[way].push_back(bench::now() - begin);
      }
    }
    for (auto& list : seconds) std::ranges::nth_element(list, list.begin() + rounds / 2);
    return {{"path_seconds", seconds[0][rounds / 2]}, {"tier_seconds", seconds[1][rounds / 2]}};
  }

  // A catalog of its own, with names alone: no files are needed to plan.
  Json many_names(double) {
    const fs::path folder = root_ / "many";
    std::vector<penstock::NewTier> tiers;
    for (const char* name : {"nvme", "ssd", "hdd"}) {
      fs::create_directories(folder / name);
      tiers.push_back({.name = name, .path = (folder / name).string(), .capacity_bytes = settings_.names * 4096});
    }
    const penstock::TiersOptions options{.catalog = (folder / "tiers.db").string()};
    auto many = value_of(penstock::Tiers::create(tiers, {}, options));
    {
      auto catalog = value_of(penstock::tiers::Catalog::open(options.catalog, 10));
      need(catalog->transact([&]() -> penstock::Status {
        for (std::uint64_t i = 0; i < settings_.names; ++i) {
          const auto id = catalog->insert_unit({.name = "folder" + std::to_string(i % 1000) + "/" + std::to_string(i),
                                                .tier = static_cast<std::int64_t>(i % 3 + 1),
                                                .size_bytes = 4096,
                                                .room_bytes = 2048 + i % 2048,
                                                .identity = "x"});
          if (!id.ok()) return id.error();
        }
        return {};
      }));
    }
    const auto seconds_of = [](const auto& work) {
      const double begin = bench::now();
      work();
      return bench::now() - begin;
    };
    Json result = {{"names", settings_.names}};
    result["open_seconds"] = seconds_of([&] { many = value_of(penstock::Tiers::open(options)); });
    result["page_seconds"] = seconds_of([&] { value_of(many.list({.after = "folder500", .limit = 1000})); });
    result["lookup_seconds"] =
        seconds_of([&] {
          for (int i = 0; i < 1000; ++i) {
            const std::string number = std::to_string(i * 997 % settings_.names);
            value_of(many.path_of("folder" + std::to_string(std::stoul(number) % 1000) + "/" + number));
          }
        }) /
        1000;
    std::uint64_t moves = 0;
    result["plan_seconds"] = seconds_of([&] { moves = value_of(many.plan()).moves.size(); });
    result["planned_moves"] = moves;
    many = {};
    fs::remove_all(folder);
    return result;
  }

 private:
  static constexpr std::uint64_t chunk = 8 << 20;

  // User and system time of this process and of those that it has started and waited for.
  static double all_cpu_seconds() {
    struct rusage children = {};
    getrusage(RUSAGE_CHILDREN, &children);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return bench::cpu_seconds() + seconds(children.ru_utime) + seconds(children.ru_stime);
  }

  // What others have left to write is written before.
  template <typename Work, typename Clear>
  Json timed(Json result, const Work& work, const Clear& clear) {
    const int folder = open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 || syncfs(folder) != 0) bench::fail_errno("sync");
    close(folder);
    const double cpu_begin = all_cpu_seconds();
    const double begin = bench::now();
    work();
    result["seconds"] = bench::now() - begin;
    clear();
    result["cleared_seconds"] = bench::now() - begin;
    result["cleared_cpu_seconds"] = all_cpu_seconds() - cpu_begin;
    return result;
  }

  // To plan, the room must be known: that waits until deleted sources have given theirs back.
  void see_room() { value_of(tiers_.plan()); }

  void copy_by_hand(const std::string& from, const std::string& to) {
    penstock::Checksum source;
    {
      const int in = direct(from, O_RDONLY);
      const int out = direct(to, O_WRONLY | O_CREAT | O_TRUNC);
      if (posix_fallocate(out, 0, static_cast<off_t>(settings_.large_bytes)) != 0) bench::fail("no room for the copy");
      std::size_t turn = 0;
      std::future<ssize_t> writing;
      for (std::uint64_t at = 0; at < settings_.large_bytes; at += chunk, turn ^= 1) {
        std::byte* memory = memory_.bytes().data() + turn * chunk;
        if (pread(in, memory, chunk, static_cast<off_t>(at)) != static_cast<ssize_t>(chunk)) bench::fail_errno("read");
        source.add({memory, chunk});
        if (writing.valid() && writing.get() != static_cast<ssize_t>(chunk)) bench::fail_errno("write");
        writing = std::async(std::launch::async, [=] { return pwrite(out, memory, chunk, static_cast<off_t>(at)); });
      }
      if (writing.valid() && writing.get() != static_cast<ssize_t>(chunk)) bench::fail_errno("write");
      if (fsync(out) != 0) bench::fail_errno("sync");
      close(in);
      close(out);
    }
    penstock::Checksum copy;
    const int in = direct(to, O_RDONLY);
    std::size_t turn = 0;
    std::future<ssize_t> reading = read_ahead(in, 0, 0);
    for (std::uint64_t at = 0; at < settings_.large_bytes; at += chunk, turn ^= 1) {
      if (reading.get() != static_cast<ssize_t>(chunk)) bench::fail_errno("read");
      if (at + chunk < settings_.large_bytes) reading = read_ahead(in, at + chunk, turn ^ 1);
      copy.add({memory_.bytes().data() + turn * chunk, chunk});
    }
    close(in);
    if (copy.value() != source.value()) bench::fail("the copy is not the source");
  }

  static int direct(const std::string& path, int flags) {
    int file = open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0600);
    if (file < 0) file = open(path.c_str(), flags | O_CLOEXEC, 0600);  // tmpfs
    if (file < 0) bench::fail_errno("open " + path);
    return file;
  }

  std::future<ssize_t> read_ahead(int file, std::uint64_t at, std::size_t turn) {
    std::byte* memory = memory_.bytes().data() + turn * chunk;
    return std::async(std::launch::async, [=] { return pread(file, memory, chunk, static_cast<off_t>(at)); });
  }

  void fill(const std::string& path) {
    const int file = direct(path, O_WRONLY);
    std::uint64_t word = 1;
    for (std::uint64_t at = 0; at < settings_.large_bytes; at += chunk) {
      auto* words = reinterpret_cast<std::uint64_t*>(memory_.bytes().data());
      for (std::uint64_t i = 0; i < chunk / sizeof word; ++i) words[i] = word = word * 6364136223846793005ULL + 1;
      if (pwrite(file, words, chunk, static_cast<off_t>(at)) != static_cast<ssize_t>(chunk)) bench::fail_errno("write");
    }
    if (fsync(file) != 0) bench::fail_errno("sync");
    close(file);
  }

  const Settings settings_;
  const fs::path root_;
  penstock::Tiers tiers_;
  bench::Memory memory_{2 * chunk};
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Moves between tiers, for bench/run.py");
  arguments.add("FOLDER", settings.folder, "where the tiers are made, and removed again").required();
  arguments.add("--large-bytes", settings.large_bytes, "the size of the large file, in whole 8 MiB");
  arguments.add("--files", settings.files, "how many small files");
  arguments.add("--file-bytes", settings.file_bytes, "the size of each");
  arguments.add("--names", settings.names, "how many names the large catalog has");
  arguments.parse(argc, argv);
  Bench bench(settings);
  bench::converse({{"version", penstock::version()}},
                  {{"move", [&](double seconds) { return bench.move(seconds); }},
                   {"plain", [&](double seconds) { return bench.plain(seconds); }},
                   {"small", [&](double seconds) { return bench.small(seconds); }},
                   {"cp", [&](double seconds) { return bench.cp(seconds); }},
                   {"open", [&](double seconds) { return bench.opening(seconds); }},
                   {"names", [&](double seconds) { return bench.many_names(seconds); }}});
  return 0;
}
