#include "memory/given.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace penstock::memory {

Result<std::shared_ptr<Given>> Given::map(int descriptor) {
  struct stat facts {};
  if (::fstat(descriptor, &facts) != 0) {
    return system_error(errno, "look at the given staging memory", "give a descriptor that is open");
  }
  const auto size = static_cast<std::size_t>(facts.st_size);
  void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) {
    return system_error(errno, "map " + std::to_string(size) + " bytes of the given staging memory",
                        "give a writable memfd that already has its size");
  }
  return std::make_shared<Given>(Private{}, Region::host(mapped, size));
}

Given::~Given() {
  ::munmap(memory_.data, memory_.size_bytes);
}

Result<std::unique_ptr<Allocation>> Given::take(std::size_t size_bytes) {
  const Error none{Code::over_budget, 0,
                   "of the " + std::to_string(memory_.size_bytes) + " bytes that were given no " +
                       std::to_string(size_bytes) + " are free",
                   "give more, or lower lanes, staging_slots_per_lane or staging_slot_bytes"};
  if (size_bytes > memory_.size_bytes) return none;
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
  std::unique_lock lock(mutex_);
  std::size_t begin = 0;
  for (const auto& [from, to] : taken_) {
    if (from - begin >= size) break;
    begin = to;
  }
  if (size > memory_.size_bytes || begin > memory_.size_bytes - size) return none;
  taken_.emplace(begin, begin + size);
  lock.unlock();  // what follows gives it back where it fails
  const std::shared_ptr<const void> part(memory_.data + begin,
                                         [self = shared_from_this(), begin](const void*) { self->give_back(begin); });
  return Allocation::adopt(Region::host(memory_.data + begin, size_bytes), part);
}

void Given::give_back(std::size_t offset) {
  const std::scoped_lock lock(mutex_);
  taken_.erase(offset);
}

}  // namespace penstock::memory
