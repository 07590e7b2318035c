#include "kernels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "cuda/unpack.h"
#include "driver.h"
#include "host_warp.h"

namespace fake_cuda {

namespace {

constexpr std::array names = {"penstock_scatter",    "penstock_unpack_bf16",    "penstock_unpack_f16",
                              "penstock_unpack_f32", "penstock_unpack_f8_e4m3", "penstock_unpack_f8_e5m2",
                              "penstock_rows_find",  "penstock_rows_place"};

// Copies every entry, as the table of entries says when the kernel runs.
CuResult run_scatter(Lock& lock, Device& device, CuDevicePtr entries, unsigned entry_count) {
  struct Entry {
    std::uint64_t from;
    std::uint64_t to;
    std::uint64_t bytes;
  };
  if (entry_count == 0) return cu_success;
  std::vector<Entry> table(entry_count);
  Side side;
  if (!hold(side, entries, table.size() * sizeof(Entry), device, &device)) return cu_illegal_address;
  lock.unlock();
  start_watching();
  std::memcpy(table.data(), side.data, table.size() * sizeof(Entry));
  stop_watching();
  lock.lock();
  let_go(side);

  std::vector<Copy> copies;
  copies.reserve(table.size());
  for (const Entry& entry : table) {
    if (entry.bytes > 0) copies.push_back({.to = entry.to, .from = entry.from, .bytes = entry.bytes});
  }
  return run_copies(lock, device, copies, &device);
}

template <typename Kind>
std::uint32_t unpack_chunk(const penstock::UnpackRun& run, std::uint32_t chunk) {
  constexpr std::uint32_t warps = 16;
  TilesFound all;
  for (std::uint32_t warp = warps; warp > 0; --warp) {
    const TilesFound found = unpack_tiles<HostWarp, Kind>(run, chunk, warp - 1, warps);
    all.checksum += found.checksum;
    if (found.reason != 0) all.reason = found.reason;
  }
  return judge(run, chunk, all);
}

std::uint32_t unpack_chunk(Kernel kernel, const penstock::UnpackRun& run, std::uint32_t chunk) {
  switch (kernel) {
    case Kernel::unpack_bf16:
      return unpack_chunk<OfBf16>(run, chunk);
    case Kernel::unpack_f16:
      return unpack_chunk<OfF16>(run, chunk);
    case Kernel::unpack_f32:
      return unpack_chunk<OfF32>(run, chunk);
    case Kernel::unpack_f8_e4m3:
      return unpack_chunk<OfE4m3>(run, chunk);
    default:
      return unpack_chunk<OfE5m2>(run, chunk);
  }
}

// The code of the kernel itself, over the memory that the addresses stand for.
CuResult run_unpack(Lock& lock, Device& device, Kernel kernel, penstock::UnpackRun run) {
  if (run.count == 0) return cu_success;
  const std::size_t stored_bytes = std::size_t{run.starts[run.count]} * penstock::UnpackRun::chunk_unit_bytes;
  std::array<Side, 3> sides;
  const bool is_there = hold(sides[0], run.stored, stored_bytes, device, &device) &&
                        (run.memory_bytes == 0 || hold(sides[1], run.memory, run.memory_bytes, device, &device)) &&
                        hold(sides[2], run.status, sizeof(std::uint32_t), device, &device);
  if (is_there) {
    // Alignment is judged by the addresses that the program gave: ours begin on pages, as they do.
    run.stored = reinterpret_cast<std::uint64_t>(sides[0].data);
    run.memory = reinterpret_cast<std::uint64_t>(sides[1].data);
    lock.unlock();
    start_watching();
    for (std::uint32_t chunk = run.count; chunk > 0; --chunk) {
      const std::uint32_t status = unpack_chunk(kernel, run, chunk - 1);
      if (status != 0) std::memcpy(sides[2].data, &status, sizeof status);
    }
    stop_watching();
    lock.lock();
  }
  for (const Side& side : sides) let_go(side);
  return is_there ? cu_success : cu_illegal_address;
}

}  // namespace

std::optional<Kernel> kernel_from_name(std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Kernel>(found - names.begin());
}

std::function<CuResult(Lock&)> launch_of(Kernel kernel, Device& device, unsigned blocks, void** parameters) {
  if (kernel == Kernel::scatter || kernel == Kernel::rows_find || kernel == Kernel::rows_place) {
    CuDevicePtr entries = 0;
    unsigned count = 0;
    std::memcpy(&entries, parameters[0], sizeof entries);
    std::memcpy(&count, parameters[1], sizeof count);
    return [&device, kernel, entries, count = std::min(count, blocks)](Lock& lock) {
      if (kernel == Kernel::rows_find) return run_row_kernel(RowKernel::find, device, entries, count);
      if (kernel == Kernel::rows_place) return run_row_kernel(RowKernel::place, device, entries, count);
      return run_scatter(lock, device, entries, count);
    };
  }
  penstock::UnpackRun run;
  std::memcpy(&run, parameters[0], sizeof run);
  run.count = std::min(run.count, blocks);
  return [&device, kernel, run](Lock& lock) { return run_unpack(lock, device, kernel, run); };
}

}  // namespace fake_cuda
