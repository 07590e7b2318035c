#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "files/guarded_copy.h"
#include "penstock/store.h"

namespace penstock {

View::View() = default;

View::View(const std::byte* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

View::View(View&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

View& View::operator=(View&& other) noexcept {
  View taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_bytes_, taken.size_bytes_);
  return *this;
}

View::~View() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

Status View::copy_to(std::uint64_t offset, Region destination) const {
  if (!destination.domain.host_accessible()) {
    return Error{Code::invalid_argument, 0, "the CPU copies a view, and can't reach the destination",
                 "copy to host or pinned memory, or read the store instead"};
  }
  if (offset > size_bytes_ || destination.size_bytes > size_bytes_ - offset) {
    return Error{Code::out_of_range, 0,
                 std::to_string(destination.size_bytes) + " bytes at " + std::to_string(offset) +
                     " reach past the end of a view of " + std::to_string(size_bytes_),
                 "ask for less"};
  }
  if (destination.size_bytes == 0) return {};
  if (destination.data == nullptr) {
    return Error{Code::invalid_argument, 0, "memory at address 0", "give memory of the size of the copy"};
  }
  const int error = files::guarded_copy({destination.data, data_ + offset, destination.size_bytes});
  if (error == 0) return {};
  if (error == EFAULT) {
    return Error{Code::truncated, EFAULT, "the file was truncated after it was mapped", "open it again"};
  }
  return system_error(error, "copy out of a mapping");
}

}  // namespace penstock
