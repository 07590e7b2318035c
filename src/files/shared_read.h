// SharedRead: one long read that several threads make, a stretch each. What it brought is what came without a gap from
// its beginning on, as of a single call.
//
// Thread safety: none of its own.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "engine/op.h"
#include "files/transfer.h"

namespace penstock::files {

class SharedRead {
 public:
  explicit SharedRead(const engine::Op& op) : op_(op), stretch_bytes_(stretch_bytes_of(op.length)), end_(op.length) {}

  const engine::Op& op() const { return op_; }
  std::uint64_t cookie() const { return op_.cookie; }
  bool has_more() const { return next_ < end_; }
  // How many more threads could have a stretch.
  std::uint64_t stretches_left() const { return (end_ - std::min(next_, end_) + stretch_bytes_ - 1) / stretch_bytes_; }

  // REQUIRES: has_more().
  engine::Op take() {
    engine::Op stretch = op_;
    stretch.offset += next_;
    stretch.memory += next_;
    stretch.length = std::min(stretch_bytes_, end_ - next_);
    next_ += stretch.length;
    ++out_;
    return stretch;
  }
  void put(const engine::Op& stretch, const engine::Done& done) {
    --out_;
    if (done.code == Code::ok && done.bytes >= stretch.length) return;
    // What lies behind a gap counts as not read. Of several, the first is the one that matters.
    const std::uint64_t gap = stretch.offset - op_.offset + done.bytes;
    if (gap >= end_) return;
    end_ = gap;
    ended_by_ = done;
  }
  // Nobody takes more of it.
  void cancel() {
    if (!has_more()) return;
    is_cancelled_ = true;
    end_ = next_;
  }
  bool is_over() const { return out_ == 0 && !has_more(); }
  // REQUIRES: is_over().
  engine::Done done() const {
    if (is_cancelled_) return finish(op_, -ECANCELED);
    engine::Done done = end_ != 0 ? finish(op_, static_cast<std::int64_t>(end_)) : ended_by_;
    done.cookie = op_.cookie;
    return done;
  }

 private:
  // Long enough that handing it over costs little, and short enough that all threads end together.
  static constexpr std::uint64_t shortest_stretch_bytes = 64 << 10, longest_stretch_bytes = 1 << 20;
  static constexpr std::uint64_t stretches = 16;
  static constexpr std::uint64_t stretch_bytes_of(std::uint64_t length) {
    const std::uint64_t whole = length / stretches / shortest_stretch_bytes * shortest_stretch_bytes;
    return std::clamp(whole, shortest_stretch_bytes, longest_stretch_bytes);
  }

  engine::Op op_;
  std::uint64_t stretch_bytes_;
  std::uint64_t next_ = 0;
  std::uint64_t end_;      // where the first gap begins, as far as is known
  std::uint64_t out_ = 0;  // stretches
  bool is_cancelled_ = false;
  engine::Done ended_by_;
};

}  // namespace penstock::files
