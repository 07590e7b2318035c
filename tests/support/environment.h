// How much a test does where somebody wants more of it (scripts/soak.sh).
#pragma once

#include <cstdint>
#include <cstdlib>

namespace penstock::test {

inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace penstock::test
