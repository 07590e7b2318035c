// plain_write: threads that write chunks of memory to a file in order with O_DIRECT, and a sync: the yardstick for
// durable writes. The file is reserved anew before each, outside the time.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"
#include "content.h"
#include "rounds.h"

namespace {

using bench::Json;

struct Settings {
  std::string file;
  std::uint64_t size_bytes = 0;
  std::uint32_t threads = 1;
  std::uint64_t chunk_bytes = 1 << 20;
};

class Writer {
 public:
  explicit Writer(const Settings& settings) : settings_(settings), memory_(settings.threads * settings.chunk_bytes) {
    bench::fill_content(0, memory_.bytes());
  }

  Json run(double seconds) {
    double spent = 0;
    double cpu = 0;
    std::uint64_t bytes = 0;
    do {
      bench::preallocate(settings_.file, settings_.size_bytes);
      const double cpu_start = bench::cpu_seconds();
      const double start = bench::now();
      write_once();
      spent += bench::now() - start;
      cpu += bench::cpu_seconds() - cpu_start;
      bytes += settings_.size_bytes;
    } while (spent < seconds);
    return {{"bytes", bytes}, {"seconds", spent}, {"cpu_seconds", cpu}};
  }

 private:
  void write_once() {
    const int descriptor = open(settings_.file.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
    if (descriptor < 0) bench::fail_errno("open " + settings_.file);
    std::atomic<std::uint64_t> next{0};
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < settings_.threads; ++i) {
      threads.emplace_back(
          [&, i] { write_chunks(descriptor, next, memory_.bytes().data() + i * settings_.chunk_bytes); });
    }
    threads.clear();
    if (fdatasync(descriptor) != 0) bench::fail_errno("sync " + settings_.file);
    close(descriptor);
  }

  void write_chunks(int descriptor, std::atomic<std::uint64_t>& next, const std::byte* from) const {
    for (;;) {
      const std::uint64_t offset = next.fetch_add(settings_.chunk_bytes);
      if (offset >= settings_.size_bytes) return;
      const std::size_t length = std::min(settings_.chunk_bytes, settings_.size_bytes - offset);
      if (pwrite(descriptor, from, length, static_cast<off_t>(offset)) != static_cast<ssize_t>(length)) {
        bench::fail_errno("write " + settings_.file);
      }
    }
  }

  const Settings settings_;
  bench::Memory memory_;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Writes a file with parallel direct writes; answers commands on its standard input.");
  arguments.add("file", settings.file, "is overwritten").required();
  arguments.add("--size", settings.size_bytes).required().positive();
  arguments.add("--threads", settings.threads).between(1, 1024);
  arguments.add("--chunk", settings.chunk_bytes).positive();
  arguments.parse(argc, argv);

  const double start = bench::now();
  Writer writer(settings);
  bench::converse({{"setup_seconds", bench::now() - start}},
                  {{"run", [&](double seconds) { return writer.run(seconds); }}});
}
