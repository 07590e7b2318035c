// Session: one store that is measured, the memory it is loaded into, and what its bytes must be.
//
// Thread safety: one thread. Lifetime: owns its memory and descriptors.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "penstock/measuring.h"
#include "services/measuring/plain.h"
#include "services/measuring/subject.h"

namespace penstock::measuring {

class Session {
 public:
  static Result<std::unique_ptr<Session>> create(const MeasuringJob& job);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const MeasuringJob& job() const { return job_; }
  const StoreInfo& info() const { return store_.info(); }
  const Context& owner() { return owner_; }
  std::uint64_t size_bytes() const { return memory_.size_bytes(); }
  Region memory() const { return memory_.region(); }
  std::span<std::byte> buffers() const { return buffers_.bytes(); }  // for plain reads, page-aligned
  bool on_gpu() const { return !job_.memory.host_accessible(); }
  int fd() const { return fd_; }
  int direct_fd() const { return direct_fd_; }  // below 0: the store has no such way

  void say(const std::string& what) const;
  // Brings all bytes into the page cache, or out of it, and has the kernel confirm it. Code::unsupported with the
  // reason where that can't be.
  Status reach(RaceState state);
  // Overwrites the memory, so that bytes which did not arrive are seen.
  Status spoil();
  Result<bool> memory_is_right();
  Result<bool> file_is_right(int fd);

 private:
  Session(const MeasuringJob& job, Context owner, Store store);
  Status open_descriptors();
  Status allocate(std::uint64_t size_bytes);

  MeasuringJob job_;
  Context owner_;  // the memory is the same for all Contexts that are compared, so it belongs to none of them
  Store store_;
  int fd_ = -1, direct_fd_ = -1;
  Buffer memory_, buffers_;
  std::string checksum_;
};

}  // namespace penstock::measuring
