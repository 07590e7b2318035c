#include "engines/uring/queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <set>
#include <thread>

#include "engines/uring/engine.h"
#include "engines/uring/store.h"
#include "files/test_queue.h"

namespace penstock::uring {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;
using engine::Path;
using namespace std::chrono_literals;

constexpr std::size_t block = 4096;
constexpr std::size_t blocks = 256;

// From now on the calling thread gets this error from a system call. Nothing can undo that: it is for threads of their
// own.
bool refuse_call(long number, int error) {
  std::array program{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                     sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1),
                     sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
                     sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

class UringQueue : public testing::Test {
 protected:
  void SetUp() override {
    const engine::Probe probe = engine_->probe();
    if (!probe.available) GTEST_SKIP() << probe.reason;
  }

  std::unique_ptr<engine::Store> open(const std::string& name, const OpenOptions& options = {}) {
    return std::move(engine_->open(name, options).value());
  }
  std::unique_ptr<engine::Queue> queue(const engine::QueueOptions& options = {}) {
    return std::move(engine_->make_queue(options).value());
  }
  Op read(engine::Store& store, std::size_t index, Path path = Path::buffered) {
    return file_.read(store, index, path);
  }
  static Done run(engine::Queue& queue, const Op& op) {
    EXPECT_EQ(queue.submit({&op, 1}), 1U);
    std::array<Done, 2> done{};
    EXPECT_EQ(queue.poll(done, Clock::now() + 10s), 1U);
    EXPECT_EQ(done[0].cookie, op.cookie);
    return done[0];
  }
  std::unique_ptr<engine::Attached> attach(std::byte* data, std::size_t size) {
    return engine_->memory()->attach(Region::host(data, size)).value();
  }
  // Reads the whole file, block by block, as deep as the queue lets us.
  void read_all(engine::Queue& queue, engine::Store& store, Path path, const engine::Attached* attached = nullptr) {
    std::fill_n(file_.memory(), file_.size_bytes(), std::byte{});
    std::set<std::uint64_t> cookies;
    std::size_t next = 0;
    while (cookies.size() < blocks) {
      for (; next < blocks; ++next) {
        Op op = read(store, next, path);
        op.attached = attached;
        if (queue.submit({&op, 1}) == 0) break;
      }
      const auto got = files::collect(queue, 1);
      ASSERT_FALSE(got.empty());
      for (const Done& one : got) {
        ASSERT_TRUE(cookies.insert(one.cookie).second);
        ASSERT_EQ(one.code, Code::ok) << one.system_error;
        ASSERT_EQ(one.bytes, block);
      }
    }
    EXPECT_TRUE(file_.all_read());
  }

  std::unique_ptr<engine::Engine> engine_ = make_engine();
  const files::BlockFile file_{block, blocks};
};

TEST_F(UringQueue, leaves_it_to_other_threads_to_zero_memory_that_was_never_touched) {
  const auto store = open(file_.name());
  const auto lane = queue();
  read_all(*lane, *store, Path::buffered);
  const auto faults = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  for (const Path path : {Path::buffered, Path::direct}) {
    if (path == Path::direct && !store->info().direct) continue;
    void* const fresh = ::mmap(nullptr, file_.size_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(fresh, MAP_FAILED);
    ::madvise(fresh, file_.size_bytes(), MADV_NOHUGEPAGE);
    const Op op{.path = path,
                .store = store.get(),
                .length = file_.size_bytes(),
                .memory = static_cast<std::byte*>(fresh),
                .cookie = 1};
    const auto before = faults();
    EXPECT_EQ(run(*lane, op).bytes, file_.size_bytes());
    EXPECT_LT(faults() - before, static_cast<long>(blocks / 4));
    EXPECT_EQ(std::memcmp(fresh, file_.memory(), file_.size_bytes()), 0);
    ::munmap(fresh, file_.size_bytes());
  }
}

TEST_F(UringQueue, reads_by_every_path_whether_memory_is_attached_or_not) {
  const auto store = open(file_.name());
  const auto lane = queue({.depth = 32});
  auto attached = attach(file_.memory(), file_.size_bytes());
  ASSERT_TRUE(attached);
  for (const Path path : {Path::cached, Path::buffered, Path::direct}) {
    if (path == Path::direct && !store->info().direct) continue;
    read_all(*lane, *store, path);
    read_all(*lane, *store, path, attached.get());
  }
  attached.reset();
  read_all(*lane, *store, Path::buffered);
}

// The kernel would go on with them on that thread, and ends them with EFAULT.
TEST_F(UringQueue, lets_operations_of_a_file_wait_that_was_opened_without) {
  const auto ring = queue();
  const auto store = open(file_.name());
  const int fd = static_cast<Store&>(*store).buffered_fd();
  ASSERT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(run(*ring, read(*store, 0)).code, Code::ok);
  EXPECT_EQ(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(UringQueue, goes_on_with_what_a_thread_submitted_that_has_ended) {
  const auto store = open(file_.name());
  constexpr std::size_t count = 32;
  for (int round = 0; round < 30; ++round) {
    const int file = ::open(file_.name().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
    const auto lane = queue({.depth = count});
    std::vector<Done> all;
    std::thread([&] {
      for (std::size_t i = 0; i < count; ++i) {
        const Op op = read(*store, i * (blocks / count));
        ASSERT_EQ(lane->submit({&op, 1}), 1U);
      }
      std::array<Done, count> done{};
      const std::size_t ended = lane->poll(done, TimePoint::min());
      all.assign(done.begin(), done.begin() + static_cast<std::ptrdiff_t>(ended));
    }).join();
    for (const Done& one : files::collect(*lane, count - all.size())) all.push_back(one);
    ASSERT_EQ(all.size(), count);
    for (const Done& one : all) ASSERT_EQ(one.code, Code::ok) << one.system_error;
  }
}

TEST_F(UringQueue, works_with_a_depth_that_is_no_power_of_two) {
  const auto store = open(file_.name());
  for (const std::uint32_t depth : {1U, 3U, 5U}) {
    const auto lane = queue({.depth = depth});
    std::vector<Op> ops;
    for (std::size_t i = 0; i < 8; ++i) ops.push_back(read(*store, i));
    EXPECT_EQ(lane->submit(ops), depth);
    std::array<Done, 8> done{};
    std::size_t got = 0;
    while (got < depth) got += lane->poll(std::span(done).subspan(got), Clock::now() + 10s);
    read_all(*lane, *store, Path::buffered);
  }
}

TEST_F(UringQueue, reuses_slots_of_stores_and_memory_for_the_next_owner) {
  const auto first_lane = queue();
  const auto second_lane = queue();
  for (int round = 0; round < 5; ++round) {
    const std::string name = file_.folder().write("b", std::string(block, static_cast<char>('a' + round)));
    const auto store = open(name);
    files::AlignedMemory memory(block);
    const auto attached = attach(memory.data(), block);
    for (engine::Queue* lane : {first_lane.get(), second_lane.get()}) {
      std::fill_n(memory.data(), block, std::byte{});
      const Op op{.path = Path::buffered,
                  .store = store.get(),
                  .length = block,
                  .memory = memory.data(),
                  .attached = attached.get()};
      EXPECT_EQ(run(*lane, op).bytes, block);
      EXPECT_EQ(static_cast<char>(memory.data()[block - 1]), 'a' + round);
    }
  }
}

TEST_F(UringQueue, holds_no_file_open_once_its_store_is_gone) {
  const auto lane = queue();
  auto store = open(file_.name(), {.access = Access::write});
  run(*lane, read(*store, 0));
  // A lease to write is granted only while nobody else has the file open.
  const UniqueFd other(::open(file_.name().c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(other);
  if (::fcntl(other.get(), F_SETLEASE, F_RDLCK) == 0) GTEST_SKIP() << "leases don't tell who has a file open here";
  if (errno != EAGAIN) GTEST_SKIP() << "leases don't work on this file system";
  store.reset();
  bool granted = false;
  for (int i = 0; i < 200 && !granted; ++i) {
    granted = ::fcntl(other.get(), F_SETLEASE, F_RDLCK) == 0;
    if (!granted) std::this_thread::sleep_for(5ms);
  }
  EXPECT_TRUE(granted);
}

TEST_F(UringQueue, serves_more_stores_than_there_are_slots) {
  constexpr rlim_t wanted = 3 * store_slots;
  struct rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < wanted) GTEST_SKIP() << "this process may not open enough files";
  limit.rlim_cur = std::max(limit.rlim_cur, wanted);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto lane = queue();
  std::vector<std::unique_ptr<engine::Store>> stores;
  for (std::uint32_t i = 0; i < store_slots + 10; ++i) stores.push_back(open(file_.name()));
  EXPECT_EQ(run(*lane, read(*stores.front(), 1)).bytes, block);
  EXPECT_EQ(run(*lane, read(*stores.back(), 2)).bytes, block);
}

TEST_F(UringQueue, opens_and_closes_stores_while_lanes_run) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const auto lane = queue({.depth = 4});
      files::AlignedMemory memory(block);
      for (std::size_t i = 0; i < 50; ++i) {
        const auto store = open(file_.name());
        const auto attached = attach(memory.data(), block);
        const Op op{.path = Path::buffered,
                    .store = store.get(),
                    .offset = i * block,
                    .length = block,
                    .memory = memory.data(),
                    .attached = attached.get()};
        EXPECT_EQ(run(*lane, op).bytes, block);
        EXPECT_TRUE(files::has_pattern(memory.data(), i * block, block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(UringQueue, sleeps_until_the_deadline_or_a_wake) {
  const auto lane = queue();
  std::array<Done, 1> done{};
  const TimePoint begin = Clock::now();
  EXPECT_EQ(lane->poll(done, begin + 20ms), 0U);
  EXPECT_GE(Clock::now() - begin, 20ms);
  for (int round = 0; round < 3; ++round) {
    lane->wake();
    lane->wake();
    EXPECT_EQ(lane->poll(done, TimePoint::min()), 0U);
    EXPECT_EQ(lane->poll(done, TimePoint::max()), 0U);
    std::thread waker([&] { lane->wake(); });
    EXPECT_EQ(lane->poll(done, TimePoint::max()), 0U);
    waker.join();
  }
  const TimePoint again = Clock::now();
  EXPECT_EQ(lane->poll(done, again + 20ms), 0U);
  EXPECT_GE(Clock::now() - again, 20ms);
}

TEST_F(UringQueue, does_not_lose_a_wake_that_meets_completions) {
  const auto lane = queue();
  const auto store = open(file_.name());
  std::array<Done, 4> done{};
  EXPECT_EQ(lane->poll(done, Clock::now() + 1ms), 0U);  // the wake is armed now
  lane->wake();
  const Op op = read(*store, 0);
  lane->submit({&op, 1});
  EXPECT_EQ(lane->poll(done, Clock::now() + 10s), 1U);
  EXPECT_EQ(lane->poll(done, TimePoint::max()), 0U);
}

// A store whose descriptor was exchanged: reads wait until somebody writes.
class PipeStore {
 public:
  explicit PipeStore(std::unique_ptr<engine::Store> store) : store_(std::move(store)) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    const UniqueFd out(pipe[0]);
    in_ = UniqueFd(pipe[1]);
    EXPECT_GE(::dup3(out.get(), static_cast<Store&>(*store_).buffered_fd(), O_CLOEXEC), 0);
  }

  engine::Store& operator*() const { return *store_; }
  void write() const { EXPECT_EQ(::write(in_.get(), "x", 1), 1); }

 private:
  const std::unique_ptr<engine::Store> store_;
  UniqueFd in_;
};

TEST_F(UringQueue, brings_a_cancelled_operation_home) {
  const auto lane = queue();
  const PipeStore store(open(file_.name()));
  const Op op = read(*store, 0);
  ASSERT_EQ(lane->submit({&op, 1}), 1U);
  std::array<Done, 2> done{};
  EXPECT_EQ(lane->poll(done, Clock::now() + 20ms), 0U);
  lane->cancel(op.cookie + 1);
  EXPECT_EQ(lane->poll(done, Clock::now() + 20ms), 0U);
  lane->cancel(op.cookie);
  lane->cancel(op.cookie);
  ASSERT_EQ(lane->poll(done, Clock::now() + 10s), 1U);
  EXPECT_EQ(done[0].code, Code::cancelled);
  EXPECT_EQ(lane->poll(done, Clock::now() + 5ms), 0U);
}

bool is_readable(int descriptor, std::chrono::milliseconds time) {
  pollfd wanted{descriptor, POLLIN, 0};
  return ::poll(&wanted, 1, static_cast<int>(time.count())) == 1;
}

TEST_F(UringQueue, tells_of_each_end_by_its_event) {
  const auto lane = queue();
  const PipeStore store(open(file_.name()));
  std::array<Done, 2> done{};
  for (std::size_t round = 0; round < 3; ++round) {
    const Op op = read(*store, round);
    ASSERT_EQ(lane->submit({&op, 1}), 1U);
    EXPECT_EQ(lane->poll(done, TimePoint::min()), 0U);
    const int event = lane->event();
    ASSERT_GE(event, 0);
    EXPECT_FALSE(is_readable(event, 0ms));
    store.write();
    EXPECT_TRUE(is_readable(event, 20s));
    ASSERT_EQ(lane->poll(done, TimePoint::min()), 1U);
    EXPECT_EQ(done[0].cookie, round);
    EXPECT_EQ(done[0].bytes, 1U);
    EXPECT_FALSE(is_readable(lane->event(), 0ms));
  }
}

TEST_F(UringQueue, tells_by_its_event_of_ends_that_no_poll_has_taken) {
  const auto lane = queue();
  const auto store = open(file_.name());
  const std::array<Op, 2> ops{read(*store, 0), read(*store, 1)};
  ASSERT_EQ(lane->submit(ops), 2U);
  std::array<Done, 1> done{};
  ASSERT_EQ(lane->poll(done, Clock::now() + 20s), 1U);
  EXPECT_TRUE(is_readable(lane->event(), 20s));
  EXPECT_EQ(lane->poll(done, Clock::now() + 20s), 1U);
}

TEST_F(UringQueue, writes_flushes_zeros_and_digs_holes) {
  const auto lane = queue();
  const auto store = open(file_.name(), {.access = Access::write});
  std::fill_n(file_.memory(), block, std::byte{9});
  Op op = read(*store, 0);
  op.kind = OpKind::write;
  EXPECT_EQ(run(*lane, op).bytes, block);
  op = {.kind = OpKind::zero, .store = store.get(), .offset = 100, .length = 50};
  EXPECT_EQ(run(*lane, op).bytes, 50U);
  op = {.kind = OpKind::deallocate, .store = store.get(), .offset = block, .length = block};
  const Done hole = run(*lane, op);
  op = {.kind = OpKind::flush, .store = store.get()};
  EXPECT_EQ(run(*lane, op).code, Code::ok);
  const std::string content = file_.folder().read("a");
  EXPECT_EQ(content[99], 9);
  EXPECT_EQ(content[100], 0);
  EXPECT_EQ(content[150], 9);
  if (hole.code == Code::unsupported) GTEST_SKIP() << "no holes on " << store->info().file_system;
  EXPECT_EQ(content[block + 1], 0);
}

TEST_F(UringQueue, writes_zeros_where_the_file_system_has_no_such_operation) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const files::ScratchFolder shm("/dev/shm");
  const std::string name = shm.write("a", std::string(3 << 20, 'x'));
  const auto lane = queue();
  const auto store = open(name, {.access = Access::write});
  Op op{.kind = OpKind::zero, .store = store.get(), .offset = 100, .length = 2 << 20};
  std::uint64_t zeroed = 0;
  while (zeroed < (2 << 20)) {
    const Done done = run(*lane, op);
    ASSERT_EQ(done.code, Code::ok);
    ASSERT_GT(done.bytes, 0U);
    zeroed += done.bytes;
    op.offset += done.bytes;
    op.length -= done.bytes;
  }
  std::string expected(3 << 20, 'x');
  std::fill_n(expected.begin() + 100, 2 << 20, '\0');
  EXPECT_TRUE(shm.read("a") == expected);
}

// Ends when it is told to.
class WaitingCall : public engine::Call {
 public:
  void run() override { may_end.get_future().wait(); }
  std::promise<void> may_end;
};

TEST_F(UringQueue, sleeps_until_a_call_has_been_run) {
  const auto ring = queue({.depth = 4, .threads = 1});
  for (int round = 0; round < 3; ++round) {
    WaitingCall call;
    const Op op{.kind = engine::OpKind::call, .call = &call, .cookie = 9};
    ASSERT_EQ(ring->submit({&op, 1}), 1U);
    Done done;
    EXPECT_EQ(ring->poll({&done, 1}, Clock::now() + 1ms), 0U);
    std::thread ending([&] { call.may_end.set_value(); });
    std::size_t count = 0;
    const TimePoint end = Clock::now() + 20s;
    while (count == 0 && Clock::now() < end) count = ring->poll({&done, 1}, end);
    ending.join();
    ASSERT_EQ(count, 1U);
    EXPECT_EQ(done.cookie, 9U);
  }
}

TEST_F(UringQueue, has_a_place_again_for_each_call_that_has_ended) {
  struct Nothing : engine::Call {
    void run() override {}
  } nothing;
  const auto lane = queue({.depth = 2});
  for (std::uint64_t cookie = 1; cookie < 20; ++cookie) {
    ASSERT_EQ(run(*lane, {.kind = OpKind::call, .call = &nothing, .cookie = cookie}).code, Code::ok);
  }
}

TEST_F(UringQueue, answers_what_it_can_not_do_with_a_code) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const files::ScratchFolder shm("/dev/shm");
  const auto lane = queue({.depth = 1});
  const auto store = open(shm.write("a", "hello"));
  const Op op = read(*store, 0, Path::direct);
  EXPECT_EQ(lane->submit({&op, 1}), 1U);
  EXPECT_EQ(lane->submit({&op, 1}), 0U);
  std::array<Done, 1> done{};
  EXPECT_EQ(lane->poll(done, Clock::now() + 10s), 1U);
  EXPECT_EQ(done[0].system_error, EINVAL);
  const auto read_only = open(file_.name());
  Op write = read(*read_only, 0);
  write.kind = OpKind::write;
  EXPECT_NE(run(*lane, write).code, Code::ok);
}

TEST_F(UringQueue, goes_on_where_memory_can_not_be_registered) {
  const auto lane = queue();
  const auto store = open(file_.name());
  // Registering fails for memory that is not there; that it is attached is then worth nothing, on this ring, for good.
  const auto attached = attach(file_.memory(), std::size_t{1} << 30);
  ASSERT_TRUE(attached);
  read_all(*lane, *store, Path::buffered, attached.get());
}

// Runs it where the kernel refuses a call of io_uring.
template <typename Action>
void where_call_is_refused(long number, Action action, int error = EPERM) {
  bool refused = false;
  std::thread([&] {
    refused = refuse_call(number, error);
    if (refused) action();
  }).join();
  if (!refused) GTEST_SKIP() << "no seccomp filter can be installed here";
}

TEST_F(UringQueue, is_not_offered_where_rings_can_be_made_but_not_used) {
  where_call_is_refused(__NR_io_uring_enter, [&] {
    const engine::Probe probe = engine_->probe();
    EXPECT_FALSE(probe.available);
    EXPECT_NE(probe.reason.find("io_uring_enter was refused"), std::string::npos) << probe.reason;
    EXPECT_NE(probe.remedy.find("seccomp"), std::string::npos);
  });
}

TEST_F(UringQueue, works_where_nothing_can_be_registered) {
  where_call_is_refused(__NR_io_uring_register, [&] {
    EXPECT_TRUE(engine_->probe().available);
    const auto store = open(file_.name());
    read_all(*queue(), *store, Path::buffered);
  });
}

TEST_F(UringQueue, does_operations_itself_once_the_kernel_refuses_to_be_entered) {
  const auto store = open(file_.name(), {.access = Access::write});
  const auto lane = queue({.depth = 8});
  read_all(*lane, *store, Path::buffered);
  std::array<Op, 2> held_back{read(*store, 0), read(*store, 1)};
  EXPECT_EQ(lane->submit(held_back), 2U);
  where_call_is_refused(__NR_io_uring_enter, [&] {
    lane->cancel(held_back[1].cookie);
    const std::vector<Done> done = files::collect(*lane, 2);
    ASSERT_EQ(done.size(), 2U);
    EXPECT_EQ(done[0].bytes, block);
    EXPECT_EQ(done[1].code, Code::cancelled);
    EXPECT_EQ(lane->event(), -1) << "it has to be polled now";
    read_all(*lane, *store, Path::buffered);
    const Op zero{.kind = OpKind::zero, .store = store.get(), .offset = 0, .length = block};
    EXPECT_EQ(run(*lane, zero).bytes, block);
    const Op cancelled = read(*store, 5);
    EXPECT_EQ(lane->submit({&cancelled, 1}), 1U);
    lane->cancel(cancelled.cookie);
    EXPECT_EQ(files::collect(*lane, 1).at(0).code, Code::cancelled);
    std::array<Done, 1> none{};
    lane->wake();
    EXPECT_EQ(lane->poll(none, TimePoint::max()), 0U);
    EXPECT_EQ(lane->poll(none, Clock::now() + 5ms), 0U);
  });
}

TEST_F(UringQueue, tries_again_later_where_the_kernel_is_short_of_memory_or_has_too_many_completions) {
  for (const int error : {EBUSY, EAGAIN, ENOMEM}) {
    const auto store = open(file_.name());
    const auto lane = queue({.depth = 8});
    std::array<Op, 2> ops{read(*store, 3), read(*store, 4)};
    EXPECT_EQ(lane->submit(ops), 2U);
    where_call_is_refused(
        __NR_io_uring_enter,
        [&] {
          std::array<Done, 2> none{};
          EXPECT_EQ(lane->poll(none, Clock::now() + 5ms), 0U) << "no operation is done in another way";
          EXPECT_EQ(lane->poll(none, TimePoint::min()), 0U);
        },
        error);
    EXPECT_GE(lane->event(), 0) << "the ring is not given up";
    const std::vector<Done> done = files::collect(*lane, 2);
    ASSERT_EQ(done.size(), 2U);
    for (const Done& one : done) EXPECT_EQ(one.bytes, block) << one.system_error;
  }
}

TEST_F(UringQueue, refuses_impossible_depths) {
  EXPECT_EQ(engine_->make_queue({.depth = 0}).error().code, Code::invalid_argument);
  EXPECT_EQ(engine_->make_queue({.depth = 1U << 20}).error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace penstock::uring
