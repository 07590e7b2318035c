// What `penstock load` brings into memory: bytes of stores, or tensors of a model. Its report is the same for both.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comparison.h"
#include "transfer.h"

namespace penstock::cli {

struct LoadFlags : TransferFlags {
  std::vector<std::string> paths;
  std::optional<std::uint64_t> lba, count;
  std::vector<std::string> select;  // patterns of tensors' names
  bool raw = false;
  unsigned repeat = 1;
};

// Everything that is open and allocated before the first byte moves.
class Cargo {
 public:
  virtual ~Cargo() = default;
  // May be called again: the memory stays the same.
  virtual Report load() = 0;
  virtual std::vector<Loaded> loaded() const = 0;
  // Tells what is its own, once it was loaded.
  virtual void describe(Transfer& transfer) const = 0;
};
Result<std::unique_ptr<Cargo>> prepare_bytes(const LoadFlags& flags);
Result<std::unique_ptr<Cargo>> prepare_model(const LoadFlags& flags);

}  // namespace penstock::cli
