// The kernels that were built in, as images for the driver, and the table of those that a GPU has loaded.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cuda/relaxed.h"

namespace penstock::cuda {

// By place in the table. Each is `name(const Entry* entries, unsigned count)`, with a block an entry, and does nothing
// where there are no entries. Those of rows have a RowsEntry each (cuda/row_cache.h).
enum class Kernel : std::uint8_t { scatter, rows_find, rows_place };

inline constexpr unsigned kernel_threads = 256;  // in a block

// One copy of the scatter kernel. Addresses as the GPU sees them.
struct ScatterEntry {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t bytes = 0;
};

// Whether the build had nvcc, and its kernels run on such a GPU.
bool has_kernels_for(int compute_major, int compute_minor);

// Thread safety: any thread; `load` once. Lifetime: its GPU's context.
class KernelTable {
 public:
  // Null where it was not built, does not fit the GPU, or is not loaded.
  CuFunction operator[](Kernel kernel) const {
    return table_[static_cast<std::size_t>(kernel)].function.load(std::memory_order_acquire);
  }
  // By its name without `penstock_`; null likewise.
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

  std::array<Entry, 3> table_{{{"penstock_scatter"}, {"penstock_rows_find"}, {"penstock_rows_place"}}};
  std::atomic<bool> settled_{false};
};

}  // namespace penstock::cuda
