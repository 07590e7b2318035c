#include "services/measuring/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/callback.h"
#include "penstock/checksum.h"
#include "penstock/gpu.h"

namespace penstock::measuring {

namespace {

constexpr double one_read_share = 1.0 / 30;  // of the time: what a plain read of all bytes may take
constexpr std::size_t most_threads = 32;     // of plain reads
constexpr std::size_t piece_bytes = 8 * mib;
constexpr int eviction_tries = 50;  // 20 ms each: pages that are just being read can't be evicted yet
constexpr int warming_tries = 3;

Error not_reached(std::string message, std::string hint) {
  return {.code = Code::unsupported, .message = std::move(message), .hint = std::move(hint)};
}

}  // namespace

Session::Session(const MeasuringJob& job, Context owner, Store store)
    : job_(job), owner_(std::move(owner)), store_(std::move(store)) {}

Session::~Session() {
  if (fd_ >= 0) close(fd_);
  if (direct_fd_ >= 0) close(direct_fd_);
}

Result<std::unique_ptr<Session>> Session::create(const MeasuringJob& job) {
  Options options;
  options.pinned_budget_bytes += job.size_bytes + most_threads * largest_chunk_bytes;
  Result<Context> owner = Context::create(options);
  if (!owner) return owner.error();
  Result<Store> store = owner->open(job.path);
  if (!store) return store.error();
  const std::uint64_t most = std::min(job.size_bytes, store->info().size_bytes) / mib * mib;
  if (most == 0) {
    return Error{.code = Code::invalid_argument,
                 .message = job.path + " is too small to measure with",
                 .hint = "name a file of at least 1 MiB, better 1 GiB, or a directory for a temporary one"};
  }
  std::unique_ptr<Session> session(new Session(job, std::move(*owner), std::move(*store)));
  if (Status opened = session->open_descriptors(); !opened) return std::move(opened).error();
  if (Status ready = session->allocate(most); !ready) return std::move(ready).error();
  return session;
}

Status Session::open_descriptors() {
  fd_ = open(job_.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) return system_error(errno, "open " + job_.path);
  if (info().direct) direct_fd_ = open(job_.path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  return {};
}

// How much a plain read brings in a share of the time is how much will be measured.
Status Session::allocate(std::uint64_t size_bytes) {
  say("reading " + job_.path);
  evict(fd_);
  const double seconds = job_.seconds * one_read_share;
  const Result<std::uint64_t> size = warm({.fd = fd_, .size_bytes = size_bytes, .seconds = seconds}, job_.keep_going);
  if (!size) return size.error();
  const std::uint64_t taken = std::max(*size / mib * mib, mib);
  for (const auto& [buffer, domain, bytes] :
       {std::tuple(&memory_, job_.memory, std::size_t{taken}),
        std::tuple(&buffers_, on_gpu() ? Domain::pinned() : Domain::host(),
                   most_threads * std::min<std::size_t>(taken, largest_chunk_bytes))}) {
    Result<Buffer> made = owner_.allocate(domain, bytes);
    if (!made) return made.error();
    *buffer = std::move(*made);
    // The first touch of fresh memory is the kernel's cost, not the store's.
    if (domain.host_accessible()) std::memset(buffer->data(), 0, buffer->size_bytes());
  }
  Checksum checksum;
  const auto add = [&](std::span<const std::byte> bytes) { checksum.add(bytes); };
  const Result<std::uint64_t> again =
      warm({.fd = fd_, .size_bytes = taken, .seconds = job_.seconds, .on_bytes = add}, job_.keep_going);
  if (!again) return again.error();
  if (*again != taken) return Error{.code = Code::timed_out, .message = job_.path + " became too slow to measure"};
  checksum_ = checksum.hex();
  return {};
}

void Session::say(const std::string& what) const {
  if (job_.on_step) call_back("MeasuringJob::on_step", job_.on_step, what);
}

Status Session::reach(RaceState state) {
  const bool cold = state == RaceState::cold;
  if (cold && info().locality == Locality::memory) {
    return not_reached(info().file_system + " is memory, not storage: it can't be cold", "name a file on a disk");
  }
  for (int tries = 0;; ++tries) {
    const std::optional<std::uint64_t> cached = store_.cached_bytes(0, size_bytes());
    if (!cached) {
      return not_reached("the kernel does not say what of " + job_.path + " is in the page cache",
                         "measure a file of your own, or on Linux 6.5 or newer");
    }
    if (*cached == (cold ? 0 : size_bytes())) return {};
    if (tries == (cold ? eviction_tries : warming_tries)) {
      return not_reached(std::to_string(*cached) + " of " + std::to_string(size_bytes()) + " bytes of " + job_.path +
                             " are in the page cache, and that does not change",
                         cold ? "somebody else reads or maps it" : "too little memory is free");
    }
    if (!job_.keep_going()) return stopped();
    if (cold) {
      if (tries != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      evict(fd_);
    } else {
      const Result<std::uint64_t> warmed =
          warm({.fd = fd_, .size_bytes = size_bytes(), .seconds = job_.seconds}, job_.keep_going);
      if (!warmed) return warmed.error();
    }
  }
}

Status Session::spoil() {
  if (!on_gpu()) {
    std::memset(memory_.data(), 0xa5, memory_.size_bytes());
    return {};
  }
  const std::vector<std::byte> wrong(piece_bytes, std::byte{0xa5});
  for (std::size_t done = 0; done < size_bytes(); done += piece_bytes) {
    const std::size_t length = std::min(piece_bytes, size_bytes() - done);
    const Region from = Region::host(const_cast<std::byte*>(wrong.data()), length);
    if (Status copied = copy(memory().part(done, length), from); !copied) return copied;
  }
  return {};
}

Result<bool> Session::memory_is_right() {
  Checksum checksum;
  std::vector<std::byte> window(on_gpu() ? piece_bytes : 0);
  for (std::size_t done = 0; done < size_bytes(); done += piece_bytes) {
    const std::size_t length = std::min(piece_bytes, size_bytes() - done);
    std::span<const std::byte> piece(memory_.data() + done, length);
    if (on_gpu()) {
      piece = std::span(window).first(length);
      if (Status copied = copy(Region::host(window.data(), length), memory().part(done, length)); !copied) {
        return std::move(copied).error();
      }
    }
    checksum.add(piece);
  }
  return checksum.hex() == checksum_;
}

Result<bool> Session::file_is_right(int fd) {
  Checksum checksum;
  const auto add = [&](std::span<const std::byte> bytes) { checksum.add(bytes); };
  const Result<std::uint64_t> size =
      warm({.fd = fd, .size_bytes = size_bytes(), .seconds = job_.seconds, .on_bytes = add}, job_.keep_going);
  if (!size) return size.error();
  return *size == size_bytes() && checksum.hex() == checksum_;
}

}  // namespace penstock::measuring
