// Cutter: what a part has to do next. It takes units, chooses their way and cuts them into pieces. It starts nothing.
//
// Thread safety: the lane's. Lifetime: its lane's.
#pragma once

#include <cstdint>
#include <optional>

#include "core/cut.h"
#include "core/environment.h"
#include "core/request.h"

namespace penstock::core {

struct NextPiece {
  StoreEntry* entry = nullptr;  // that serves it from the host
  const Span* span = nullptr;   // the range that it is of
  std::uint64_t offset = 0;     // in the store
  Cut cut;
};

class Cutter {
 public:
  // `staging_bytes`: what the lane has of it.
  Cutter(Environment& environment, std::uint64_t staging_bytes)
      : environment_(environment), staging_bytes_(staging_bytes) {}

  // The same until the part is advanced; Part::plan says how it is to go. Nothing when no units are left. What no route
  // can carry fails on the way. `room_bytes`: as in Request::claim_units.
  std::optional<NextPiece> next(Part& part, std::uint64_t room_bytes = UINT64_MAX) const;
  // So much of the range was started, or is dealt with otherwise.
  static void advance(Part& part, std::uint64_t bytes);
  // What is left of the unit: each of its ranges fails. `cause`: where more is known than the code says.
  static void fail_unit(Part& part, Code code, const Error* cause = nullptr);
  // Whether what the device can't take may go through the page cache.
  static bool may_be_buffered(const Request& request, const StoreEntry& entry, const Span& span);

 private:
  bool next_unit(Part& part, std::uint64_t room_bytes) const;
  void plan_unit(Part& part) const;
  Stays stays(const Part& part) const;
  // Of the store.
  struct Window {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };
  // `around_device`: as if no engine reached GPU memory by itself.
  void plan_window(Part& part, Residency residency, Window window, bool around_device = false) const;
  void plan_piece(Part& part, std::uint64_t offset, std::uint64_t length) const;
  Cut cut_next(Part& part, const StoreEntry& entry, const Span& span, const Rest& rest) const;
  const CutRules& rules_of(Part& part, const StoreEntry& entry, const Span& span) const;
  CutRules rules(const Part& part, const StoreEntry& entry, const Span& span) const;

  Environment& environment_;
  const std::uint64_t staging_bytes_;
};

}  // namespace penstock::core
