// Dictionary: which kinds there are and where, as text and as values. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/kinds.h"

namespace penstock::kinds {

inline constexpr std::uint64_t dictionary_bytes_most = 64 << 20;
inline constexpr std::uint64_t placed_at_multiples_of = 4096;

struct Dictionary {
  std::uint64_t block_bytes = 512;            // what LBAs count
  std::optional<std::uint64_t> device_bytes;  // of the device that it is for
  std::uint32_t last_id = 0;                  // the highest that was ever given: none is given twice
  std::vector<Kind> kinds;                    // by start; no two overlap, or share an id or a name

  // Null: there is none.
  const Kind* find(std::uint32_t id) const;
  const Kind* find(std::string_view name) const;
};

// Code::unsupported for another version, else Code::invalid_argument.
Result<Dictionary> parse(std::string_view json);
// What parse reads: a line for each kind.
Result<std::string> to_text(const Dictionary& dictionary);

// A block device or an NVMe namespace; all else may grow.
bool is_device(const StoreInfo& store);
// Whether the kinds lie in a store, and the dictionary is of this device.
Status check_store(const Dictionary& dictionary, const StoreInfo& store);
// Adds a kind, and returns its place in the list. `behind_bytes`: where a kind that may be anywhere comes behind.
Result<std::size_t> add(Dictionary& dictionary, const NewKind& kind, std::uint64_t behind_bytes);

}  // namespace penstock::kinds
