// RangeList: pieces of files as the ranges of a request. What is packed becomes several ranges, each of whole chunks.
//
// Thread safety: one thread's. Lifetime: the stores must outlive it; a request keeps what it needs.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "penstock/context.h"
#include "penstock/transform.h"
#include "services/models/parts.h"

namespace penstock::models {

class RangeList {
 public:
  explicit RangeList(const Context& context) : options_(context.options()) {}

  void reserve(std::size_t ranges) { ranges_.reserve(ranges); }
  void add(const Store& store, const FilePiece& piece);
  bool empty() const { return ranges_.empty(); }
  std::span<const Range> ranges() const { return ranges_; }

 private:
  const Options& options_;
  std::vector<Range> ranges_;
  std::deque<Stored> stored_;  // their addresses stay
};

}  // namespace penstock::models
