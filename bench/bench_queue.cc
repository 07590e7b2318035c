// bench_queue: a CompletionQueue and what a program would write instead, on a file that make_file made. Commands:
//   latency   one 4 KiB read past the page cache at a time, p50: by wait, by a loop of poll, and by epoll on the
//             descriptor with no thread polling
//   direct    4 KiB random reads past the page cache, 64 in flight, one thread; plain: liburing, registered file and
//             buffers
//   cached    the same from the page cache
//   many      5,000 cached reads of 4 KiB in flight, one epoll loop; plain: two threads of pread and an eventfd
#include <fcntl.h>
#include <liburing.h>
#include <penstock/penstock.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "arguments.h"
#include "content.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;
using bench::value_of;
using penstock::Region;

constexpr std::size_t page = 4096;
constexpr unsigned depth = 64;
constexpr std::size_t many = 5000;

struct Settings {
  std::string file;
  std::uint64_t reads = 20'000;
};

Json taken(double seconds, double cpu_seconds) {
  return {{"seconds", seconds}, {"cpu_seconds", cpu_seconds}};
}

template <typename Work>
Json measure(Work work) {
  const double begun = bench::now();
  const double cpu = bench::cpu_seconds();
  work();
  return taken(bench::now() - begun, bench::cpu_seconds() - cpu);
}

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings),
        context_(value_of(penstock::Context::create())),
        store_(value_of(context_.open(settings.file))),
        places_(store_.info().size_bytes / page),
        memory_(many * page) {
    direct_.cache = penstock::Cache::bypass;
  }

  Json latency() {
    return {{"wait", one_by_one(false, [](const auto& queue,
                                          auto done) { return queue.wait(done, 1, std::chrono::seconds(10)); })},
            {"poll", one_by_one(false, [](const auto& queue, auto done) { return queue.poll(done); })},
            {"epoll", one_by_one(true, [this](const auto& queue, auto done) {
               epoll_event ready{};
               if (::epoll_wait(events_, &ready, 1, 10'000) != 1) bench::fail("no completion came");
               return queue.poll(done);
             })}};
  }
  Json at_depth(bool direct) {
    const Json plain = measure([&] { by_liburing(direct); });
    return {{"plain", plain}, {"ours", measure([&] { by_queue(direct); })}};
  }
  Json at_once() {
    const Json plain = measure([&] { by_threads(); });
    return {{"plain", plain}, {"ours", measure([&] { by_epoll(); })}};
  }
  Json check() {
    by_queue(true);
    std::array<std::byte, page> expected;
    bench::fill_content(last_offset_, expected);
    return {{"right", std::memcmp(expected.data(), slot(last_slot_).data(), page) == 0}};
  }

 private:
  std::uint64_t next_offset() { return random_() % places_ * page; }
  std::span<std::byte> slot(std::size_t index) { return memory_.bytes().subspan(index * page, page); }

  void submit(const penstock::CompletionQueue& queue, std::size_t index, const penstock::RequestOptions* options) {
    last_offset_ = next_offset();
    last_slot_ = index;
    const penstock::Range range{&store_, last_offset_, Region::host(slot(index).data(), page)};
    const auto status = queue.submit({.ranges = {&range, 1}, .user_data = index, .options = options});
    if (!status) bench::fail(status.error().message);
  }

  template <typename Collect>
  double one_by_one(bool has_descriptor, Collect collect) {
    const auto queue = value_of(penstock::CompletionQueue::create(context_));
    if (has_descriptor) watch(queue.fd());
    std::array<penstock::Completion, 1> done;
    std::vector<double> seconds;
    for (int i = 0; i < 400; ++i) {
      const double begun = bench::now();
      submit(queue, 0, &direct_);
      while (collect(queue, std::span(done)) == 0) {
      }
      seconds.push_back(bench::now() - begun);
    }
    std::ranges::nth_element(seconds, seconds.begin() + 200);
    if (has_descriptor) ::close(events_);
    return seconds[200];
  }
  void watch(int fd) {
    events_ = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event wanted{.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(events_, EPOLL_CTL_ADD, fd, &wanted);
  }

  void by_queue(bool direct) {
    const auto queue = value_of(penstock::CompletionQueue::create(context_, {.capacity = depth}));
    const penstock::RequestOptions* const options = direct ? &direct_ : nullptr;
    std::array<penstock::Completion, depth> done;
    std::uint64_t submitted = 0;
    for (; submitted < depth; ++submitted) submit(queue, submitted, options);
    for (std::uint64_t ended = 0; ended < settings_.reads;) {
      const std::size_t count = queue.wait(done, 1, std::chrono::seconds(10));
      ended += count;
      for (std::size_t i = 0; i < count; ++i) {
        if (done[i].code != penstock::Code::ok) bench::fail("a read failed");
        if (submitted < settings_.reads) submit(queue, done[i].user_data, options), ++submitted;
      }
    }
  }

  void by_liburing(bool direct) {
    const int file = ::open(settings_.file.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
    io_uring ring{};
    if (::io_uring_queue_init(depth, &ring, 0) != 0) bench::fail_errno("io_uring_queue_init");
    std::array<iovec, depth> buffers;
    for (unsigned i = 0; i < depth; ++i) buffers[i] = {slot(i).data(), page};
    if (::io_uring_register_files(&ring, &file, 1) != 0 ||
        ::io_uring_register_buffers(&ring, buffers.data(), depth) != 0) {
      bench::fail("io_uring_register");
    }
    const auto prepare = [&](std::size_t index) {
      io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring);
      ::io_uring_prep_read_fixed(sqe, 0, buffers[index].iov_base, page, next_offset(), static_cast<int>(index));
      sqe->flags |= IOSQE_FIXED_FILE;
      sqe->user_data = index;
    };
    std::uint64_t submitted = 0;
    for (; submitted < depth; ++submitted) prepare(submitted);
    for (std::uint64_t ended = 0; ended < settings_.reads;) {
      ::io_uring_submit_and_wait(&ring, 1);
      std::array<io_uring_cqe*, depth> cqes;
      const unsigned count = ::io_uring_peek_batch_cqe(&ring, cqes.data(), depth);
      for (unsigned i = 0; i < count; ++i) {
        if (cqes[i]->res != static_cast<int>(page)) bench::fail("a read failed");
        if (submitted < settings_.reads) prepare(cqes[i]->user_data), ++submitted;
      }
      ::io_uring_cq_advance(&ring, count);
      ended += count;
    }
    ::io_uring_queue_exit(&ring);
    ::close(file);
  }

  void by_epoll() {
    const auto queue = value_of(penstock::CompletionQueue::create(context_, {.capacity = many}));
    watch(queue.fd());
    std::vector<penstock::Completion> done(many);
    for (int round = 0; round < rounds_of_many; ++round) {
      for (std::size_t i = 0; i < many; ++i) submit(queue, i, nullptr);
      for (std::size_t ended = 0; ended < many;) {
        epoll_event ready{};
        if (::epoll_wait(events_, &ready, 1, 10'000) != 1) bench::fail("no completion came");
        ended += queue.poll(done);
      }
    }
    ::close(events_);
  }

  void by_threads() {
    const int file = ::open(settings_.file.c_str(), O_RDONLY | O_CLOEXEC);
    const int event = ::eventfd(0, EFD_CLOEXEC);
    watch(event);
    std::vector<std::uint64_t> offsets(many);
    for (int round = 0; round < rounds_of_many; ++round) {
      for (auto& offset : offsets) offset = next_offset();
      std::atomic<std::size_t> next{0};
      std::vector<std::jthread> threads;
      for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&] {
          for (std::size_t at = next++; at < many; at = next++) {
            if (::pread(file, slot(at).data(), page, static_cast<off_t>(offsets[at])) != static_cast<ssize_t>(page)) {
              bench::fail("a read failed");
            }
            ::eventfd_write(event, 1);
          }
        });
      }
      for (std::uint64_t ended = 0; ended < many;) {
        epoll_event ready{};
        if (::epoll_wait(events_, &ready, 1, 10'000) != 1) bench::fail("no completion came");
        eventfd_t count = 0;
        ::eventfd_read(event, &count);
        ended += count;
      }
    }
    ::close(events_);
    ::close(event);
    ::close(file);
  }

  static constexpr int rounds_of_many = 20;

  const Settings settings_;
  const penstock::Context context_;
  const penstock::Store store_;
  const std::uint64_t places_;
  const bench::Memory memory_;
  penstock::RequestOptions direct_;
  std::mt19937_64 random_{1};
  int events_ = -1;
  std::uint64_t last_offset_ = 0;
  std::size_t last_slot_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Measures a CompletionQueue beside plain code");
  arguments.add("file", settings.file, "the file, made by make_file").required();
  arguments.add("--reads", settings.reads, "of a command with 64 in flight");
  arguments.parse(argc, argv);
  Bench bench(settings);
  bench::converse({{"reads", settings.reads}}, {
                                                   {"latency", [&](double) { return bench.latency(); }},
                                                   {"direct", [&](double) { return bench.at_depth(true); }},
                                                   {"cached", [&](double) { return bench.at_depth(false); }},
                                                   {"many", [&](double) { return bench.at_once(); }},
                                                   {"check", [&](double) { return bench.check(); }},
                                               });
}
