#include "services/measuring/plain.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>

#include "penstock/gpu.h"

namespace penstock::measuring {

namespace {

// Threads that work until they are done, told to stop, or one has failed.
class Crew {
 public:
  using Work = std::function<Status(std::uint32_t thread)>;

  bool stop() const { return stop_.load(std::memory_order_relaxed); }

  // After `seconds` the others are told to stop; 0: they end by themselves.
  Status run(std::uint32_t threads, double seconds, const Work& work, const KeepGoing& keep_going) {
    working_ = threads;
    std::vector<std::jthread> crew;
    for (std::uint32_t i = 0; i < threads; ++i) {
      try {
        crew.emplace_back([this, i, &work] { leave(work(i)); });
      } catch (const std::system_error& error) {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        status_ = system_error(error.code().value(), "start a thread");
        working_ -= threads - i;
        break;
      }
    }
    const double end = now() + seconds;
    std::unique_lock lock(mutex_);
    while (working_ != 0) {
      const double left = seconds > 0 ? std::clamp(end - now(), 0.0, 0.1) : 0.1;
      all_left_.wait_for(lock, std::chrono::duration<double>(left));
      if (seconds > 0 && now() >= end) stop_ = true;
      if (working_ == 0 || keep_going()) continue;
      stop_ = true;
      status_ = stopped();
    }
    return status_;
  }

 private:
  void leave(Status status) {
    const std::lock_guard lock(mutex_);
    if (!status) stop_ = true;
    if (!status && status_) status_ = std::move(status);
    if (--working_ == 0) all_left_.notify_one();
  }

  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable all_left_;
  std::uint32_t working_ = 0;
  Status status_;
};

// All of the span, at its place.
Status move_all(int fd, Direction direction, std::uint64_t offset, std::span<std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const auto place = static_cast<off_t>(offset + done);
    const ssize_t got = direction == Direction::read ? pread(fd, bytes.data() + done, bytes.size() - done, place)
                                                     : pwrite(fd, bytes.data() + done, bytes.size() - done, place);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, direction == Direction::read ? "read plainly" : "write plainly");
    if (got == 0) return Error{.code = Code::truncated, .message = "the file became shorter meanwhile"};
    done += static_cast<std::size_t>(got);
  }
  return {};
}

std::string size_text(std::uint64_t bytes) {
  return bytes >= 1 << 20 ? std::to_string(bytes >> 20) + " MiB" : std::to_string(bytes >> 10) + " KiB";
}

}  // namespace

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::uint64_t own_memory_bytes() {
  std::ifstream status("/proc/self/status");
  std::uint64_t kilobytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:") || line.starts_with("RssShmem:")) {
      kilobytes += std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10);
    }
  }
  return kilobytes * 1024;
}

std::string PlainSetting::text() const {
  return std::to_string(threads) + (threads == 1 ? " thread, " : " threads, ") + size_text(chunk_bytes);
}

Result<Sample> run_plain(const PlainJob& job, const KeepGoing& keep_going) {
  Crew crew;
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> bytes{0};
  const std::uint64_t chunk = job.setting.chunk_bytes;
  const std::uint64_t chunks = (job.size_bytes + chunk - 1) / chunk;
  const bool in_place = job.memory.size() >= job.size_bytes;
  const auto work = [&](std::uint32_t thread) -> Status {
    // Once at least: a busy machine may let a thread begin when the time is over.
    do {
      const std::uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
      if (job.seconds == 0 && number >= chunks) break;
      const std::uint64_t offset = number % chunks * chunk;
      const std::uint64_t length = std::min(chunk, job.size_bytes - offset);
      const std::span place = job.memory.subspan(in_place ? offset : thread * chunk, length);
      if (Status moved = move_all(job.fd, job.direction, offset, place); !moved) return moved;
      bytes.fetch_add(length, std::memory_order_relaxed);
    } while (!crew.stop());
    return {};
  };
  const double cpu = cpu_seconds();
  const double start = now();
  if (Status done = crew.run(job.setting.threads, job.seconds, work, keep_going); !done) return std::move(done).error();
  if (job.direction == Direction::write && fdatasync(job.fd) != 0) return system_error(errno, "sync plain writes");
  return Sample{bytes, now() - start, cpu_seconds() - cpu};
}

Result<Sample> run_copies(Region to, Region from, double seconds, const KeepGoing& keep_going) {
  const std::size_t length = std::min(to.size_bytes, from.size_bytes);
  const double cpu = cpu_seconds();
  const double start = now();
  std::uint64_t bytes = 0;
  do {
    if (!keep_going()) return stopped();
    if (Status copied = copy(to.part(0, length), from.part(0, length)); !copied) return std::move(copied).error();
    bytes += length;
  } while (now() - start < seconds);
  return Sample{bytes, now() - start, cpu_seconds() - cpu};
}

Result<Sample> run_plain_random(const PlainRandomJob& job, std::vector<float>& latencies, const KeepGoing& keep_going) {
  Crew crew;
  std::mutex mutex;
  std::uint64_t operations = 0;
  const auto work = [&](std::uint32_t thread) -> Status {
    std::mt19937_64 random(std::random_device{}());
    std::vector<float> own;
    const std::size_t place = thread * std::size_t{job.block_bytes};
    const std::span block = job.memory.subspan(place, job.block_bytes);
    do {  // once at least, too
      const double start = now();
      const std::uint64_t offset = random() % (job.size_bytes / job.block_bytes) * job.block_bytes;
      if (Status moved = move_all(job.fd, Direction::read, offset, block); !moved) return moved;
      if (job.to.size_bytes != 0) {
        const Region from = Region::host(block.data(), block.size());
        if (Status copied = copy(job.to.part(place, block.size()), from); !copied) return copied;
      }
      own.push_back(static_cast<float>(now() - start));
    } while (!crew.stop());
    const std::lock_guard lock(mutex);
    operations += own.size();
    latencies.insert(latencies.end(), own.begin(), own.end());
    return {};
  };
  const double cpu = cpu_seconds();
  const double start = now();
  if (Status done = crew.run(job.depth, job.seconds, work, keep_going); !done) return std::move(done).error();
  return Sample{operations * job.block_bytes, now() - start, cpu_seconds() - cpu};
}

}  // namespace penstock::measuring
