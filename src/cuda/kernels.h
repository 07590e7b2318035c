// The kernels that were built in, as images for the driver, and the table of those that a GPU has loaded.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cuda/relaxed.h"
#include "penstock/unpack.h"

namespace penstock::cuda {

// By place in the table. Those that decode packed chunks take an UnpackRun by value; the others (const Entry* entries,
// unsigned count), for rows with a RowsEntry (cuda/row_cache.h). Each has a block an entry or a chunk, and does nothing
// where there are none.
enum class Kernel : std::uint8_t {
  scatter,
  unpack_bf16,
  unpack_f16,
  unpack_f32,
  unpack_f8_e4m3,
  unpack_f8_e5m2,
  rows_find,
  rows_place
};

inline constexpr unsigned kernel_threads = 256;  // in a block
inline constexpr unsigned unpack_threads = 512;  // so that the few chunks of a slot keep many warps busy

// One copy of the scatter kernel. Addresses as the GPU sees them.
struct ScatterEntry {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t bytes = 0;
};

// The one that decodes a type.
inline Kernel unpack_kernel(PackedType type) {
  static_assert(static_cast<int>(Kernel::unpack_bf16) == static_cast<int>(PackedType::bf16) &&
                static_cast<int>(Kernel::unpack_f8_e5m2) == static_cast<int>(PackedType::f8_e5m2));
  return static_cast<Kernel>(type);
}

// Whether the build had nvcc, and its kernels run on such a GPU.
bool has_kernels_for(int compute_major, int compute_minor);

// Thread safety: any thread; `load` once. Lifetime: its GPU's context.
class KernelTable {
 public:
  // Null where it was not built, does not fit the GPU, or is not loaded.
  CuFunction operator[](Kernel kernel) const {
    return table_[static_cast<std::size_t>(kernel)].function.load(std::memory_order_acquire);
  }
  // Of those that take entries, by its name without `penstock_`; null likewise.
  CuFunction find(std::string_view name) const;
  // Whether there will be no others than there are.
  bool is_settled() const { return settled_.load(std::memory_order_acquire); }

  // Loads all of them. The driver waits with that for all that the GPU is doing, so it is Quiet's. REQUIRES: a current
  // context, for whose life they stay loaded.
  void load(const RelaxedApi& api);

 private:
  struct Entry {
    const char* name;
    std::atomic<CuFunction> function{nullptr};
  };
  CuResult load_module(const RelaxedApi& api);

  std::array<Entry, 8> table_{{{"penstock_scatter"},
                               {"penstock_unpack_bf16"},
                               {"penstock_unpack_f16"},
                               {"penstock_unpack_f32"},
                               {"penstock_unpack_f8_e4m3"},
                               {"penstock_unpack_f8_e5m2"},
                               {"penstock_rows_find"},
                               {"penstock_rows_place"}}};
  std::atomic<bool> settled_{false};
};

}  // namespace penstock::cuda
