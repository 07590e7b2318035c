#include "services/tiers/direct_reads.h"

#include <liburing.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace penstock::tiers {

struct DirectReads::Ring {
  struct io_uring kernel = {};
  bool is_open = ::io_uring_queue_init(most, &kernel, 0) == 0;

  Ring() = default;
  ~Ring() {
    if (is_open) ::io_uring_queue_exit(&kernel);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
};

DirectReads::DirectReads() : ring_(std::make_unique<Ring>()) {
  if (!ring_->is_open) ring_.reset();
}

DirectReads::~DirectReads() = default;

void DirectReads::run(std::span<Read> reads) {
  if (!ring_) return;
  struct io_uring* ring = &ring_->kernel;
  for (Read& read : reads) {
    struct io_uring_sqe* entry = ::io_uring_get_sqe(ring);
    ::io_uring_prep_read(entry, read.file, read.place, read.bytes, 0);
    ::io_uring_sqe_set_data(entry, &read);
  }
  std::size_t begun = 0;
  int error = 0;
  while (begun < reads.size() && error == 0) {
    const int result = ::io_uring_submit_and_wait(ring, static_cast<unsigned>(reads.size()));
    if (result > 0) begun += static_cast<std::size_t>(result);
    if (result <= 0 && result != -EINTR) error = result == 0 ? EAGAIN : -result;
  }
  for (std::size_t ended = 0; ended < begun;) {
    struct io_uring_cqe* done = nullptr;
    const int result = ::io_uring_wait_cqe(ring, &done);
    if (result == 0) {
      static_cast<Read*>(::io_uring_cqe_get_data(done))->got = done->res;
      ::io_uring_cqe_seen(ring, done);
      ++ended;
    } else if (result != -EINTR) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // what is under way still writes to its memory
    }
  }
  if (error != 0) ring_.reset();  // what was not begun is still in it
}

}  // namespace penstock::tiers
