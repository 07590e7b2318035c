// bench_nvme: the NVMe driver over a controller in software with its blocks in memory, as run.py tells it to:
//   driver              reads of 512 bytes in batches, one thread, one queue pair; the controller on another core
//   controller          what the controller does by itself: each batch is written at once and only waited for
//   submit, complete    under callgrind: --count operations in batches, whose submissions or completions are counted;
//                       prints how many there were, and ends
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"
#include "content.h"
#include "counting.h"
#include "nvme/io_queue.h"
#include "nvme/ram_backend.h"
#include "nvme/soft_controller.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;
using bench::value_of;
using namespace penstock::nvme;

constexpr std::uint64_t block = 512;
constexpr std::uint64_t disk_bytes = 16 << 20;
constexpr std::uint64_t disk_blocks = disk_bytes / block;

struct Settings {
  std::string mode = "driver";
  std::uint32_t batch = 32;
  std::uint32_t depth = 128;
  std::uint64_t count = 0;
};

// The cores that this process may use, two of them apart: the controller's thread inherits the one, we take the other.
class Cores {
 public:
  Cores() {
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) cpus_.push_back(cpu);
    }
  }
  std::size_t count() const { return cpus_.size(); }
  void stay_on(std::size_t index) const {
    if (cpus_.size() < 2) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus_[index], &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }

 private:
  std::vector<int> cpus_;
};

std::unique_ptr<BlockBackend> make_disk() {
  auto disk = std::make_unique<RamBackend>(disk_bytes);
  bench::fill_content(0, disk->bytes());
  return disk;
}

class Bench {
 public:
  explicit Bench(const Settings& settings) : settings_(settings) {
    cores_.stay_on(1);
    SoftShape shape;
    shape.interrupts = false;  // nobody sleeps here
    soft_ = std::make_unique<SoftController>(make_disk(), shape);
    cores_.stay_on(0);
    ControllerOptions options;
    options.queue_entries = 256;
    controller_ = value_of(Controller::open(*soft_, options));
    queue_ = value_of(controller_->make_queue());
    data_ = value_of(DmaMemory::create(*soft_, settings.depth * block));
    space_ = {.info = value_of(controller_->find_namespace(1))};
    for (std::uint32_t i = settings.depth; i > 0; --i) free_.push_back(i - 1);
    ios_.resize(settings.batch);
    done_.resize(settings.depth);
    offsets_.resize(settings.depth);
  }
  ~Bench() {
    queue_.reset();
    data_ = {};
    controller_.reset();
    for (const std::string& breach : soft_->breaches()) std::fprintf(stderr, "breach: %s\n", breach.c_str());
  }

  Json ready() const {
    return {{"version", std::string(penstock::version())}, {"cores", cores_.count()}, {"batch", settings_.batch}};
  }

  Json run(double seconds) {
    const SoftCounters before = soft_->counters();
    const std::uint64_t rung = queue_->state().doorbells;
    const double cpu = bench::cpu_seconds();
    const double start = bench::now();
    std::uint64_t batches = 0;
    std::uint64_t ended = 0;
    const auto more = [&] { return (batches & 63) != 0 || bench::now() - start < seconds; };
    while (more()) {
      while (free_.size() >= settings_.batch) {
        queue_->submit(next_batch());
        ++batches;
      }
      ended += take(queue_->poll(done_));
    }
    while (free_.size() < settings_.depth) ended += take(queue_->poll(done_));
    const double spent = bench::now() - start;
    const SoftCounters after = soft_->counters();
    return {{"operations", ended},
            {"bytes", ended * block},
            {"seconds", spent},
            {"cpu_seconds", bench::cpu_seconds() - cpu},
            {"batches", batches},
            {"doorbells", queue_->state().doorbells - rung},
            {"commands", after.commands - before.commands},
            {"doorbells_seen", after.doorbells - before.doorbells}};
  }

  // From the doorbell of a batch to its last completion, which is looked for and no more.
  Json run_controller(double seconds) {
    double spent = 0;
    std::uint64_t ended = 0;
    while (spent < seconds) {
      queue_->submit(next_batch());
      const double start = bench::now();
      await_completions();
      spent += bench::now() - start;
      ended += take(queue_->poll(done_));
    }
    return {{"operations", ended}, {"bytes", ended * block}, {"seconds", spent}};
  }

  // One batch at a time, each submitted, then waited for, then polled, so that nothing is polled in vain.
  Json count(std::uint64_t operations) {
    std::uint64_t ended = 0;
    while (ended < operations) {
      const std::span<const Io> batch = next_batch();
      if (settings_.mode == "submit") bench::toggle_counting();
      queue_->submit(batch);
      if (settings_.mode == "submit") bench::toggle_counting();
      await_completions();
      if (settings_.mode == "complete") bench::toggle_counting();
      const std::size_t got = queue_->poll(done_);
      if (settings_.mode == "complete") bench::toggle_counting();
      ended += take(got);
    }
    return {{"operations", ended}};
  }

  Json check() {
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < disk_blocks / settings_.batch; ++i) {
      count(settings_.batch);
      for (std::uint32_t slot = settings_.depth - settings_.batch; slot < settings_.depth; ++slot) {
        std::array<std::byte, block> expected;
        bench::fill_content(offsets_[slot], expected);
        if (std::memcmp(data_.data() + slot * block, expected.data(), block) != 0) ++wrong;
      }
    }
    return {{"checksum", wrong}, {"expected", 0}};
  }

 private:
  std::span<const Io> next_batch() {
    for (Io& io : ios_) {
      const std::uint32_t slot = free_.back();
      free_.pop_back();
      random_ = random_ * 6364136223846793005U + 1442695040888963407U;
      offsets_[slot] = (random_ >> 33) % disk_blocks * block;
      io = {IoKind::read, &space_, offsets_[slot], block, data_.address() + slot * block, slot};
    }
    return ios_;
  }
  std::size_t take(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (done_[i].bytes != block) bench::fail("a read failed");
      free_.push_back(static_cast<std::uint32_t>(done_[i].cookie));
    }
    return count;
  }
  // Until the completion queue holds a batch that was not looked at.
  void await_completions() const {
    const QueuePairState& state = queue_->state();
    const std::uint64_t last = state.head + settings_.batch - 1;
    const Completion& entry = state.memory.completions[last & (state.memory.completion_entries - 1)];
    const bool phase = (last & state.memory.completion_entries) == 0;
    for (std::uint32_t looks = 0; Completion::phase(CpuPlatform::load_acquire(entry.status)) != phase; ++looks) {
      if (looks > 10'000 || settings_.count != 0) std::this_thread::yield();
    }
  }

  const Settings settings_;
  const Cores cores_;
  std::unique_ptr<SoftController> soft_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<IoQueue> queue_;
  DmaMemory data_;
  Namespace space_;
  std::vector<std::uint32_t> free_;
  std::vector<Io> ios_;
  std::vector<IoDone> done_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t random_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Reads from an NVMe controller in software; answers commands on its standard input.");
  arguments.add("mode", settings.mode).required().one_of({"driver", "controller", "submit", "complete"});
  arguments.add("--batch", settings.batch).between(1, 128);
  arguments.add("--depth", settings.depth, "operations in flight").between(1, 255);
  arguments.add("--count", settings.count, "operations");
  arguments.parse(argc, argv);
  if (settings.depth < settings.batch) bench::fail("--depth is less than --batch");

  const bool counts = settings.mode == "submit" || settings.mode == "complete";
  if (counts && !bench::can_count()) bench::fail("built without valgrind's headers, or not run under callgrind");
  Bench session(settings);
  if (counts) {
    std::puts(session.count(settings.count).dump().c_str());
    return 0;
  }
  const bool driver = settings.mode == "driver";
  const auto run = [&](double seconds) { return driver ? session.run(seconds) : session.run_controller(seconds); };
  bench::converse(session.ready(), {{"run", run}, {"check", [&](double) { return session.check(); }}});
}
