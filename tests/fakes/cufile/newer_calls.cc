// What came with later releases: a library without this file is an old one.
#include <chrono>
#include <cstring>
#include <new>

#include "model.h"

using namespace fake_cufile;

FAKE_CUFILE_EXPORT CfError cuFileDriverClose_v2() {
  const Lock lock(model().mutex);
  if (!Model::calls_cuda()) return cuda_failed;
  if (!model().is_open()) return {5001, 0};
  --model().counters.use_count;
  ++model().counters.driver_closes;
  return success;
}

FAKE_CUFILE_EXPORT long cuFileUseCount() {
  const Lock lock(model().mutex);
  return model().counters.use_count;
}

FAKE_CUFILE_EXPORT CfError cuFileGetVersion(int* version) {
  const Lock lock(model().mutex);
  *version = model().version;
  return success;
}

namespace {

bool* parameter_named(int parameter) {
  switch (parameter) {
    case cf_parameter_allow_compat:
      return &model().allow_compat;
    case cf_parameter_force_compat:
      return &model().force_compat;
    case cf_parameter_use_p2pdma:
      return &model().use_p2pdma;
    default:
      return nullptr;
  }
}

}  // namespace

FAKE_CUFILE_EXPORT CfError cuFileSetParameterBool(int parameter, bool value) {
  const Lock lock(model().mutex);
  if (const int number = model().injected("cuFileSetParameterBool")) return {number, 0};
  if (model().is_open()) return {cf_driver_already_open, 0};
  bool* const place = parameter_named(parameter);
  if (place == nullptr) return {5022, 0};
  *place = value;
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileGetParameterBool(int parameter, bool* value) {
  const Lock lock(model().mutex);
  const bool* const place = parameter_named(parameter);
  if (place == nullptr) return {5022, 0};
  *value = *place;
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileBatchIOSetUp(CfBatch* batch, unsigned capacity) {
  const Lock lock(model().mutex);
  if (const int number = model().injected("cuFileBatchIOSetUp")) return {number, 0};
  if (!Model::calls_cuda()) return cuda_failed;
  if (capacity == 0 || capacity > 128) return {5022, 0};
  *batch = reinterpret_cast<CfBatch>(model().next_handle++);
  model().batches[*batch];
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileBatchIOSubmit(CfBatch batch, unsigned count, CfBatchEntry* entries, unsigned flags) {
  Lock lock(model().mutex);
  Model& m = model();
  if (const int number = m.injected("cuFileBatchIOSubmit")) return {number, 0};
  if (flags != 0 || !m.batches.contains(batch)) return {5022, 0};
  for (unsigned i = 0; i < count; ++i) {
    const CfBatchEntry& entry = entries[i];
    if (m.stall != fake_cufile_no_stall) {
      m.batches[batch].stalled.push_back(entry);
      continue;
    }
    ++m.counters.batched_transfers;
    const auto& at = entry.transfer;
    const ssize_t moved = m.transfer(lock,
                                     {entry.handle, static_cast<std::byte*>(at.base), at.size, at.file_offset,
                                      at.memory_offset, entry.opcode == cf_read},
                                     "entry");
    // The last comes home first: an order that nobody may rely on.
    m.batches[batch].events.push_front(
        {entry.cookie, moved < 0 ? cf_batch_failed : cf_batch_complete, static_cast<std::size_t>(moved)});
  }
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileBatchIOGetStatus(CfBatch batch, unsigned least, unsigned* count, CfBatchEvent* events,
                                                  struct timespec* timeout) {
  Lock lock(model().mutex);
  Model& m = model();
  if (const int number = m.injected("cuFileBatchIOGetStatus")) return {number, 0};
  if (!Model::calls_cuda()) return cuda_failed;
  auto& waiting = m.batches.at(batch).events;
  const auto limit = std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec);
  m.changed.wait_for(lock, limit, [&] { return waiting.size() >= least; });
  unsigned taken = 0;
  while (taken < *count && !waiting.empty()) {
    events[taken++] = waiting.front();
    waiting.pop_front();
  }
  *count = taken;
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileBatchIOCancel(CfBatch batch) {
  const Lock lock(model().mutex);
  Model& m = model();
  if (m.stall == fake_cufile_stall_for_good) return {5042, 0};
  Batch& cancelled = m.batches.at(batch);
  for (const CfBatchEntry& entry : cancelled.stalled) cancelled.events.push_back({entry.cookie, cf_batch_cancelled, 0});
  cancelled.stalled.clear();
  return success;
}

FAKE_CUFILE_EXPORT void cuFileBatchIODestroy(CfBatch batch) {
  const Lock lock(model().mutex);
  if (!Model::calls_cuda()) return;
  model().batches.erase(batch);
}

FAKE_CUFILE_EXPORT CfError cuFileSetStatsLevel(int level) {
  const Lock lock(model().mutex);
  if (level < 0 || level > 3) return {5022, 0};
  model().statistics_level = level;
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileGetStatsLevel(int* level) {
  const Lock lock(model().mutex);
  *level = model().statistics_level;
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileStatsStart() {
  const Lock lock(model().mutex);
  if (!model().is_open()) return {5001, 0};
  model().counting = true;
  return success;
}

FAKE_CUFILE_EXPORT CfError cuFileGetStatsL3(void* statistics) {
  const Lock lock(model().mutex);
  Model& m = model();
  if (const int number = m.injected("cuFileGetStatsL3")) return {number, 0};
  if (m.statistics_level < cf_statistics_level) return {5022, 0};
  CfGpuCounters gpu{};
  gpu.p2p_reads = m.reads.p2pdma;
  gpu.nvidia_fs_reads = m.reads.nvidia_fs;
  gpu.posix_reads = m.reads.posix;
  gpu.p2p_writes = m.writes.p2pdma;
  gpu.nvidia_fs_writes = m.writes.nvidia_fs;
  gpu.posix_writes = m.writes.posix;
  // Releases after 1.18 have more counters before these.
  std::byte* const at = static_cast<std::byte*>(statistics) + (m.version >= 1190 ? 1136 : 1024);
  const std::uint32_t gpus = 1;
  std::memcpy(at, &gpus, sizeof gpus);
  std::memcpy(at + 8, &gpu, sizeof gpu);
  return success;
}
