// Fault points: places with names at which tests stop a move. Elsewhere they do nothing.
//
// Thread safety: set it while nothing moves.
#pragma once

#include <array>
#include <functional>
#include <string_view>

namespace penstock::tiers {

// Every step of a move, a write and a removal, in order.
inline constexpr std::array<std::string_view, 15> fault_points = {
    "begun",      // the unit is locked
    "staged",     // an empty file or directory lies at the target, aside
    "journaled",  // the catalog knows of it
    "copying",    // some bytes are there
    "saved",      // and the catalog knows how many are safe
    "copied",     // all are
    "synced",     // on the disk
    "verified",   // and compared
    "named",      // they have their name at the target
    "settled",    // and that is on the disk
    "committed",  // the catalog has the unit there
    "aside",      // the source has lost its name
    "emptied",    // and is deleted
    "cleared",    // and that is on the disk
    "forgotten",  // the catalog knows no more of the move
};

// Besides: "tier" (one of a new catalog has been added), "looking" (a directory is about to be listed), "parent" (a
// folder above a unit was made), "owning" (a copy is about to get the owner and mode that its source has by now),
// "removing" (a directory is about to be emptied).
void fault_point(std::string_view name);
// An empty function undoes it.
void set_fault_hook(std::function<void(std::string_view name)> hook);

}  // namespace penstock::tiers
