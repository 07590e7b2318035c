// PartList: parts in turn, linked by themselves (Part::next_in_list), so that none of it can lack memory. ActiveParts:
// all that a lane works on, likewise (Part::next_in_lane).
//
// Thread safety: its owner's. Lifetime: a part is in one list at most, and is removed before it goes.
#pragma once

#include <utility>

#include "core/request.h"

namespace penstock::core {

class PartList {
 public:
  bool empty() const { return first_ == nullptr; }
  // REQUIRES: not empty.
  Part& front() const { return *first_; }

  void push(Part& part) {
    part.in_list = true;
    part.next_in_list = nullptr;
    (last_ != nullptr ? last_->next_in_list : first_) = &part;
    last_ = &part;
  }
  Part& pop() {
    Part& part = *first_;
    part.in_list = false;
    first_ = part.next_in_list;
    if (first_ == nullptr) last_ = nullptr;
    return part;
  }
  // The first to the end.
  void rotate() { push(pop()); }
  // Nothing, if it is not in a list.
  void remove(Part& part) {
    if (!part.in_list) return;
    Part* before = nullptr;
    for (Part* at = first_; at != &part; at = at->next_in_list) before = at;
    (before != nullptr ? before->next_in_list : first_) = part.next_in_list;
    if (last_ == &part) last_ = before;
    part.in_list = false;
  }

 private:
  Part* first_ = nullptr;
  Part* last_ = nullptr;
};

class ActiveParts {
 public:
  bool empty() const { return first_ == nullptr; }

  // Before the others.
  void push(Part& part) {
    part.next_in_lane = first_;
    part.previous_in_lane = nullptr;
    if (first_ != nullptr) first_->previous_in_lane = &part;
    first_ = &part;
  }
  // REQUIRES: it is here.
  void remove(Part& part) {
    (part.previous_in_lane != nullptr ? part.previous_in_lane->next_in_lane : first_) = part.next_in_lane;
    if (part.next_in_lane != nullptr) part.next_in_lane->previous_in_lane = part.previous_in_lane;
  }
  // Calls `visit(Part&)` for each that is here now; it may remove that one, and push it again.
  template <typename Visit>
  void for_each(Visit visit) {
    for (Part* part = first_; part != nullptr;) visit(*std::exchange(part, part->next_in_lane));
  }

 private:
  Part* first_ = nullptr;
};

}  // namespace penstock::core
