// What `penstock load` brings into memory: bytes of stores, or tensors of a model. Its report is the same for both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comparison.h"
#include "standard_output.h"
#include "transfer.h"

namespace penstock::cli {

struct LoadFlags : TransferFlags {
  std::vector<std::string> paths;
  std::optional<std::uint64_t> lba, count;
  std::vector<std::string> select;  // patterns of tensors' names
  bool raw = false;
  unsigned repeat = 1;
  std::string timeline;
  bool watch = false;
};

// What the flags want of a store.
struct Slice {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};
Result<Slice> choose_slice(const StoreInfo& info, const LoadFlags& flags);

// Everything that is open and allocated before the first byte moves.
class Cargo {
 public:
  virtual ~Cargo() = default;
  virtual const Context& context() = 0;
  // Of the memory that it is loaded into.
  virtual std::uint64_t bytes() const = 0;
  // May be called again: the memory stays the same. Ten times a second `on_progress` is told how many bytes are there.
  virtual Report load(const std::function<void(std::uint64_t)>& on_progress) = 0;
  virtual std::vector<Loaded> loaded() const = 0;
  // Tells what is its own, once it was loaded.
  virtual void describe(Transfer& transfer) const = 0;
};
Result<std::unique_ptr<Cargo>> prepare_bytes(const LoadFlags& flags);
// Bytes that go to standard output, in order, through a little memory.
inline constexpr std::string_view to_standard_output = "-";
Result<std::unique_ptr<Cargo>> prepare_stream(const LoadFlags& flags, const StandardOutput& output);
// Standard input or another stream (source.h), whose size only its end tells: to standard output, or into memory that
// is allocated as bytes come.
Result<std::unique_ptr<Cargo>> prepare_pipe(const LoadFlags& flags, const std::optional<StandardOutput>& output);
Result<std::unique_ptr<Cargo>> prepare_model(const LoadFlags& flags);

// What is worth knowing about a load besides its report (load_block.cc).
struct LoadCost {
  double cpu_seconds = 0;  // of the whole process
};
void add_block(const LoadFlags& flags, const std::vector<Loaded>& loaded, const Context& context, const LoadCost& cost,
               Transfer& transfer);

}  // namespace penstock::cli
