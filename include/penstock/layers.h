// Layers: the tensors of a model that is larger than the memory for it. They are loaded in groups (a layer, an expert)
// into a budget of GPU or host memory, ahead of their use.
//
//   auto model = penstock::Model::open(context, "models/llama/").value();
//   auto layers = penstock::Layers::open(context, model, penstock::layer_groups(model).value(),
//                                        {.domain = penstock::Domain::cuda(0), .budget_bytes = 4ULL << 30}).value();
//   for (std::size_t i = 0; i < layers.groups().size(); ++i) {
//     const auto tensors = layers.acquire(i).value();  // waits until they are there; they are loaded ahead
//     run(i, tensors, stream);                         // puts kernels on the stream
//     layers.release(i, {stream});                     // the memory is used again when the stream is past it
//   }
//
// What comes next is told by hints, or learnt: a group that was used twice after the same number of acquires is
// expected again after as many. At first, groups are expected in their order. docs/layers.md has the rules.
//
// Everything is loaded by requests of the Context, from any store, several groups at a time. No group is loaded twice
// at a time. All memory is allocated when the Layers are opened, and cut into slots that stay as they are; the report
// has how many groups of each size they hold.
//
// A load that fails is told by `acquire` of its group, once; the next one tries again. Others go on.
//
// Thread safety: any thread. Lifetime: it keeps its Context open, and does not need the Model. A thread of
// its own loads ahead. The destructor cancels loads, and waits until streams have passed what was released, at most
// `close_seconds`; if they have not, the memory is never given back. Memory of groups
// that are still held goes. In a forked child, calls fail with Code::closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/cuda.h"
#include "penstock/models.h"

namespace penstock {

namespace layers {
class Cache;
}

// A tensor, or rows of it: steps of its slowest dimension.
struct GroupTensor {
  std::uint32_t tensor = 0;      // its index in Model::tensors()
  std::optional<Interval> rows;  // nothing: all of it
};

// Tensors that are used together.
struct TensorGroup {
  std::string name;
  std::vector<GroupTensor> tensors;
};

// All tensors of a model, by layer: those whose names are alike up to the first number ("model.layers.7", "blk.7"), by
// that number, then the rest by their names without the last part ("lm_head").
//
// Patterns make groups of their own: tensors whose names begin with a match. In a pattern, "*" stands for any text
// without a dot: "model.layers.*.mlp.experts.*". Where a tensor has a row for each expert, a slash cuts it:
// "blk.*/ffn_*_exps.weight" makes a group "blk.7/3" of row 3 of these tensors of "blk.7". Code::not_found if a pattern
// matches nothing.
PENSTOCK_EXPORT Result<std::vector<TensorGroup>> layer_groups(const Model& model,
                                                              std::span<const std::string> patterns = {});

struct LayersOptions {
  Domain domain = Domain::cuda(0);
  std::uint64_t budget_bytes = 0;
  // Memory of yours to use, instead of the two above. It must stay until the Layers are closed; if a slot was lost
  // (SlotsReport), as long as that of an abandoned request (request.h).
  Region memory = {};
  // How much is loaded ahead at a time; at least two groups.
  std::uint64_t ahead_bytes = 256 << 20;
  // How long `acquire` waits for a load, or for somebody to release a group.
  double deadline_seconds = 100;
  // How loads use the page cache; nothing: as the Context does. Where that is automatic, files that fit stay in the
  // page cache.
  std::optional<Cache> cache = {};
  // Groups are first expected one after the other. Otherwise nothing is expected before it was used.
  bool in_order = true;
};

struct GroupReport {
  std::uint64_t hits = 0;   // acquires that found it there
  std::uint64_t waits = 0;  // acquires that waited for it
  double wait_seconds = 0;  // of callers
  std::uint64_t loads = 0;
  std::uint64_t loaded_bytes = 0;
  std::uint64_t failed_loads = 0;
  bool is_loaded = false;
  bool is_pinned = false;
  std::uint32_t held = 0;  // how often it was acquired and not released
};

// Slots of one size, and the groups that take turns in them.
struct SlotsReport {
  std::uint64_t slot_bytes = 0;
  std::size_t slots = 0;
  std::size_t groups = 0;
  std::size_t lost = 0;  // slots that an abandoned operation may still write to
};

struct LayersReport {
  GroupReport all;  // sums
  std::vector<GroupReport> groups;
  std::vector<SlotsReport> slots;
  std::uint64_t memory_bytes = 0;  // of all slots, at most the budget
};

// Made by default, or moved from, it has no groups: calls fail with Code::invalid_argument.
class PENSTOCK_EXPORT Layers {
 public:
  // Code::invalid_argument for a budget that is smaller than a group, for groups without a name or with the same one,
  // and for tensors that don't exist; Code::out_of_range for rows that don't; Code::no_device without the GPU.
  static Result<Layers> open(const Context& context, const Model& model, std::vector<TensorGroup> groups,
                             const LayersOptions& options);
  Layers();
  Layers(Layers&&) noexcept;
  Layers& operator=(Layers&&) noexcept;
  ~Layers();

  const std::vector<TensorGroup>& groups() const;
  std::optional<std::size_t> find(std::string_view name) const;
  std::uint64_t size_bytes(std::size_t group) const;  // of its tensors

  // The tensors of a group, in the order of TensorGroup::tensors. They are there when the call returns, so work on any
  // stream may use them. They stay until as many releases; the span, too. A group may be acquired by several threads.
  // Code::timed_out if all slots for it are held and none is released, or the load takes too long.
  Result<std::span<const Region>> acquire(std::size_t group);
  // The same: the call waits, and puts nothing on the stream.
  Result<std::span<const Region>> acquire(std::size_t group, CudaStream stream);
  // In GPU memory: once all work that is on the stream now is done, the memory may be used again. In host memory: at
  // once. If the stream can't be marked, that is the error, and the group stays held. Code::invalid_argument for a
  // group that is not held.
  Status release(std::size_t group, CudaStream stream = {});
  // Code::closed in a forked child; otherwise nothing can have failed that `acquire` has not told.
  Status check();

  // The groups that are acquired next, in this order. Replaces earlier hints.
  Status hint(std::span<const std::size_t> groups);
  // Loads a group soon and keeps it, at one place, until it is unpinned. Code::over_budget if that would leave no slot
  // to the others of its size.
  Status pin(std::size_t group);
  Status unpin(std::size_t group);

  LayersReport report() const;
  // As the destructor does. If groups are held: Code::in_use, and all goes on, unless `released` says that they are not
  // used any more. Acquires that wait, and later ones, fail with Code::closed. Code::abandoned: it is closed, but
  // an operation may still write to the memory; what you gave must stay as long as that of an abandoned request
  // (request.h).
  enum class Held : std::uint8_t { refused, released };
  Status close(Held held = Held::refused);

 private:
  explicit Layers(std::unique_ptr<layers::Cache> cache);
  std::unique_ptr<layers::Cache> cache_;
};

}  // namespace penstock
