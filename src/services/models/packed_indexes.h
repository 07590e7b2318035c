// PackedIndexes: where the chunks of packed tensors lie. Their indexes are read when a tensor is first wanted, and
// kept.
//
// Thread safety: any thread. Lifetime: shared by the copies of a Model.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "penstock/models.h"
#include "services/models/file_stores.h"
#include "services/models/parts.h"
#include "services/packed/unpack.h"

namespace penstock::models {

class PackedIndexes {
 public:
  explicit PackedIndexes(std::size_t tensors) : tensors_(tensors) {}

  // Reads those that are not known yet, in one request for as many files as may be open at a time.
  static Status read(const Context& context, const Model& model, FileStores& stores,
                     std::span<const std::uint32_t> tensors, const RequestOptions& options);
  // REQUIRES: its index was read, if it is packed.
  static TensorPlace place_of(const Model& model, std::uint32_t tensor);

 private:
  std::shared_ptr<const packed::Unpack> find(std::uint32_t tensor) const;
  void keep(std::uint32_t tensor, std::shared_ptr<const packed::Unpack> unpack);

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const packed::Unpack>> tensors_;  // by index
};

}  // namespace penstock::models
