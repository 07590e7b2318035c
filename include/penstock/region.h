// Region: a borrowed range of memory with its Domain. Its owner must outlive every request that names it, and stay
// longer if such a request was abandoned (see request.h). A Buffer need not: requests hold its memory.
#pragma once

#include <cstddef>

#include "penstock/domain.h"

namespace penstock {

struct Region {
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  Domain domain;

  static Region host(void* data, std::size_t size_bytes) {
    return {static_cast<std::byte*>(data), size_bytes, Domain::host()};
  }
  // REQUIRES: offset + length <= size_bytes
  Region part(std::size_t offset, std::size_t length) const { return {data + offset, length, domain}; }
};

}  // namespace penstock
