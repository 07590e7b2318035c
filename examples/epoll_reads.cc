// Reads a file in blocks from an event loop: requests go to a CompletionQueue, and epoll waits for its descriptor
// together with a timer. Prints how many blocks arrived.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "penstock/penstock.h"

namespace {

constexpr std::size_t block_bytes = 64 << 10;
constexpr std::size_t live = 32;  // requests at a time

int fail(const penstock::Error& error) {
  std::fprintf(stderr, "%s\n%s\n", error.message.c_str(), error.hint.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: epoll_reads FILE\n"), 2;
  const auto context = penstock::Context::create();
  if (!context) return fail(context.error());
  const auto file = context->open(argv[1]);
  if (!file) return fail(file.error());
  const auto queue = penstock::CompletionQueue::create(*context, {.capacity = live});
  if (!queue) return fail(queue.error());

  const int events = ::epoll_create1(EPOLL_CLOEXEC);
  const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  const itimerspec every_second{.it_interval = {1, 0}, .it_value = {1, 0}};
  ::timerfd_settime(timer, 0, &every_second, nullptr);
  for (const int fd : {queue->fd(), timer}) {
    epoll_event wanted{.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(events, EPOLL_CTL_ADD, fd, &wanted);
  }

  const std::size_t count = file->info().size_bytes / block_bytes;
  std::vector<std::byte> memory(live * block_bytes);
  std::size_t submitted = 0;
  std::size_t done = 0;
  // The user data of a request is the slot of memory that it fills.
  const auto submit_to = [&](std::uint64_t slot) {
    const auto region = penstock::Region::host(&memory[slot * block_bytes], block_bytes);
    const penstock::Range range{&*file, submitted++ * block_bytes, region};
    return queue->submit({.ranges = {&range, 1}, .user_data = slot});
  };
  for (std::uint64_t slot = 0; slot < live && submitted < count; ++slot) {
    if (const auto status = submit_to(slot); !status) return fail(status.error());
  }
  while (done < count) {
    std::array<epoll_event, 2> ready{};
    const int ready_count = ::epoll_wait(events, ready.data(), static_cast<int>(ready.size()), -1);
    for (int i = 0; i < ready_count; ++i) {
      if (ready[static_cast<std::size_t>(i)].data.fd == timer) {
        std::uint64_t seconds = 0;
        if (::read(timer, &seconds, sizeof seconds) == sizeof seconds)
          std::fprintf(stderr, "%zu of %zu\n", done, count);
        continue;
      }
      std::array<penstock::Completion, live> completions;
      const std::size_t collected = queue->poll(completions);
      for (std::size_t each = 0; each < collected; ++each) {
        const auto& completion = completions[each];
        if (completion.code != penstock::Code::ok) {
          std::fprintf(stderr, "%s\n", std::string(penstock::code_name(completion.code)).c_str());
          return 1;
        }
        ++done;
        if (submitted == count) continue;
        if (const auto status = submit_to(completion.user_data); !status) return fail(status.error());
      }
    }
  }
  std::printf("%zu blocks of %zu bytes\n", done, block_bytes);
  ::close(timer);
  ::close(events);
}
