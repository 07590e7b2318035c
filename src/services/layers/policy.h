// What a cache of groups remembers of their uses, and which group makes room for another. Pure functions.
//
// One number decides: how many acquires from now a group is expected to be used next.
//   1. A hinted group: its place in the hints. (The caller of `decide` knows the hints.)
//   2. A regular group, whose last two gaps were alike: one gap after its last use, until that is overdue.
//   3. Any other group: by how often it was used, where uses count half as much after a half-life.
// The group whose next use is farthest goes.
//
// Groups that are used in turn have an exception. With the rule alone, all of them would be loaded anew in every pass.
// So some of them stay, spread evenly over the pass, and only the others make room for each other (`stays`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace penstock::layers {

// The uses of a group. Time is the number of acquires of all groups, from 1.
struct Uses {
  std::uint64_t last = 0;  // 0: never
  std::uint64_t gap = 0;   // between the last two; 0: there were none
  bool regular = false;
  double weight = 0;  // how many, at `last`; those long ago count less
};

// REQUIRES: now > uses.last
void note_use(Uses& uses, std::uint64_t now, double half_life);
// Whether a regular group is on time.
bool is_expected(const Uses& uses, std::uint64_t now);
// How many acquires from now it is used next, as far as can be told: at least 1; infinity if it never was.
double distance(const Uses& uses, std::uint64_t now, double half_life);
// After how many acquires a use counts half.
double half_life(std::size_t groups);

// Which of the groups that share slots stay, if they are used in turn: as many as there are slots, without those that
// the others take turns in.
struct Turns {
  std::size_t groups = 0;
  std::size_t slots = 0;
  std::size_t for_turns = 0;
};
bool stays(const Turns& turns, std::size_t rank);
// How many slots are for turns: one that is used, and as many as hold what is loaded ahead.
std::size_t slots_for_turns(std::size_t slots, std::uint64_t slot_bytes, std::uint64_t ahead_bytes);

// A slot, as far as it matters here.
struct Candidate {
  bool is_empty = false;
  bool is_fixed = false;   // held, pinned, being loaded, or lost
  bool is_in_use = false;  // by a stream, which has not passed it
  bool stays = false;
  double distance = 0;  // of the group in it
};

// Why room is needed.
struct Wish {
  bool demanded = false;  // somebody waits for it
  double distance = 0;    // otherwise: when it is used
};

// The slot to load into: an empty one, or the one whose group goes. Nothing if there is none, or if what is there is
// needed sooner than what is wished for. It may be one that a stream has to pass first, but not while another does that
// is needed about as late: a caller that is far ahead of its stream would wait for the last thing it gave to it.
std::optional<std::size_t> decide(std::span<const Candidate> slots, const Wish& wish);

}  // namespace penstock::layers
