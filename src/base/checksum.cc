#include "penstock/checksum.h"

#include <sys/random.h>

#include <chrono>

#include "base/keyed_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock {

namespace {

std::uint64_t draw_key() {
  std::uint64_t key = 0;
  if (getrandom(&key, sizeof key, GRND_NONBLOCK) == sizeof key) return key;
  // A machine that has just started, or a sandbox: hard to guess all the same.
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

std::uint64_t keyed_hash(std::string_view text) {
  static const std::uint64_t key = draw_key();
  return XXH3_64bits_withSeed(text.data(), text.size(), key);
}

struct Checksum::State {
  State() { XXH3_64bits_reset(&xxh3); }
  XXH3_state_t xxh3;
};

Checksum::Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  if (!state_) state_ = std::make_unique<State>();
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const {
  return state_ ? XXH3_64bits_digest(&state_->xxh3) : XXH3_64bits("", 0);
}

std::string Checksum::hex() const {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text(16, '0');
  std::uint64_t rest = value();
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, rest >>= 4) *digit = digits[rest & 15];
  return text;
}

}  // namespace penstock
