// plain_read: what a careful program does without a library: threads that take chunks of a file in order and pread
// them to their place in memory, or each into one buffer again and again. The yardstick for cached files, for mounts
// with latency, and for disks.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"
#include "rounds.h"

namespace {

using bench::Json;

struct Settings {
  std::string file;
  std::uint64_t size_bytes = 0;
  std::uint32_t threads = 1;
  std::uint64_t chunk_bytes = 1 << 20;
  bool direct = false;
  bool evict = false;
  bool reuse_memory = false;
};

class Reader {
 public:
  Reader(const Settings& settings, int descriptor)
      : settings_(settings),
        descriptor_(descriptor),
        memory_(settings.reuse_memory ? settings.threads * settings.chunk_bytes : settings.size_bytes) {}

  // Loads until `seconds` were spent loading; whole loads, or `partial` ones that stop where the time is over. The
  // threads live as long as the round, and wait for each other between loads.
  Json run(double seconds, bool partial) {
    spent_ = 0;
    bytes_ = 0;
    loads_ = 0;
    seconds_ = seconds;
    end_ = partial ? bench::now() + seconds : 0;
    running_ = true;
    const double cpu_start = bench::cpu_seconds();
    begin_load();
    std::barrier between_loads(static_cast<std::ptrdiff_t>(settings_.threads), [this]() noexcept { end_load(); });
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < settings_.threads; ++i) {
      threads.emplace_back([&, i] {
        while (running_) {
          read_chunks(i);
          between_loads.arrive_and_wait();
        }
      });
    }
    threads.clear();
    return {{"bytes", bytes_.load()},
            {"seconds", spent_},
            {"cpu_seconds", bench::cpu_seconds() - cpu_start},
            {"loads", loads_}};
  }

 private:
  void begin_load() {
    if (settings_.evict) bench::evict(settings_.file);
    next_ = 0;
    load_start_ = bench::now();
  }

  // Runs on one thread while the others wait.
  void end_load() noexcept {
    spent_ += bench::now() - load_start_;
    ++loads_;
    running_ = end_ == 0 ? spent_ < seconds_ : bench::now() < end_;
    if (running_) begin_load();
  }

  void read_chunks(std::uint32_t thread) {
    std::uint64_t done = 0;
    for (;;) {
      if (end_ != 0 && bench::now() > end_) break;
      const std::uint64_t offset = next_.fetch_add(settings_.chunk_bytes, std::memory_order_relaxed);
      if (offset >= settings_.size_bytes) break;
      const std::uint64_t length = std::min(settings_.chunk_bytes, settings_.size_bytes - offset);
      const std::uint64_t place = settings_.reuse_memory ? thread * settings_.chunk_bytes : offset;
      done += read_chunk(offset, memory_.bytes().subspan(place, length));
    }
    bytes_ += done;
  }

  std::uint64_t read_chunk(std::uint64_t offset, std::span<std::byte> chunk) {
    for (std::size_t done = 0; done < chunk.size();) {
      const ssize_t got =
          pread(descriptor_, chunk.data() + done, chunk.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) bench::fail_errno("read " + settings_.file);
      if (got == 0) bench::fail("read " + settings_.file + ": the file has become shorter");
      done += static_cast<std::size_t>(got);
    }
    return chunk.size();
  }

  const Settings settings_;
  const int descriptor_;
  bench::Memory memory_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::uint64_t loads_ = 0;
  double seconds_ = 0;
  double spent_ = 0;
  double load_start_ = 0;
  double end_ = 0;
  bool running_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Reads a file with parallel preads; answers commands on its standard input.");
  arguments.add("file", settings.file).required();
  arguments.add("--size", settings.size_bytes, "bytes from the start of the file; all of it by default");
  arguments.add("--threads", settings.threads).between(1, 1024);
  arguments.add("--chunk", settings.chunk_bytes).positive();
  arguments.add_flag("--direct", settings.direct, "with O_DIRECT");
  arguments.add_flag("--evict", settings.evict,
                     "drop the file from the page cache before every load, outside the time");
  arguments.add_flag("--reuse-memory", settings.reuse_memory, "each thread reads into one chunk of memory of its own");
  arguments.parse(argc, argv);

  const double start = bench::now();
  const int descriptor = open(settings.file.c_str(), O_RDONLY | O_CLOEXEC | (settings.direct ? O_DIRECT : 0));
  struct stat status {};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) bench::fail_errno("open " + settings.file);
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  if (settings.size_bytes == 0) settings.size_bytes = file_bytes;
  if (settings.size_bytes > file_bytes) bench::fail(settings.file + " is shorter than --size");
  Reader reader(settings, descriptor);
  bench::converse({{"setup_seconds", bench::now() - start}},
                  {{"run", [&](double seconds) { return reader.run(seconds, false); }},
                   {"sample", [&](double seconds) { return reader.run(seconds, true); }}});
  close(descriptor);
}
