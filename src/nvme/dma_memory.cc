#include "nvme/dma_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace penstock::nvme {

std::size_t system_page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Result<DmaMemory> DmaMemory::create(Transport& transport, std::size_t size_bytes) {
  const std::size_t page = system_page_bytes();
  DmaMemory memory;
  memory.size_bytes_ = (size_bytes + page - 1) / page * page;
  const std::string what = "allocate " + std::to_string(memory.size_bytes_) + " bytes for " + transport.name();
  void* data = ::mmap(nullptr, memory.size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return system_error(errno, what);
  ::madvise(data, memory.size_bytes_, MADV_DONTFORK);  // a child has no part in it
  memory.data_ = static_cast<std::byte*>(data);
  auto address = transport.map(memory.data_, memory.size_bytes_);
  if (!address) {
    ::munmap(data, memory.size_bytes_);
    return std::move(address).error();
  }
  memory.address_ = *address;
  memory.transport_ = &transport;
  return memory;
}

DmaMemory::~DmaMemory() {
  if (transport_ == nullptr) return;
  transport_->unmap(address_, size_bytes_);
  ::munmap(data_, size_bytes_);
}

void DmaMemory::swap(DmaMemory& other) noexcept {
  std::swap(transport_, other.transport_);
  std::swap(data_, other.data_);
  std::swap(address_, other.address_);
  std::swap(size_bytes_, other.size_bytes_);
}

}  // namespace penstock::nvme
