// Sha256: by OpenSSL's libcrypto where the machine has it, found at run time.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "penstock/result.h"

namespace penstock::models {

class Sha256 {
 public:
  // Code::unsupported with the reason where there is no libcrypto.so.3.
  static Result<Sha256> create();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void add(std::span<const std::byte> bytes);
  // Ends it. 64 lower-case hexadecimal digits; empty if libcrypto failed.
  std::string hex();

 private:
  struct State;
  explicit Sha256(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::models
