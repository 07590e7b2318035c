// Faults of a server of kernels' queues, drawn from a number: each command is exact in spite of them, or says that it
// is not.
#pragma once

#include <array>
#include <cstdint>
#include <random>

#include "services/gpu_queues/worker.h"

namespace penstock::test {

// One in a hundred commands of each kind.
inline gpu_queues::Fault drawn_fault(std::uint64_t number) {
  using gpu_queues::Fault;
  constexpr std::array faults = {Fault::fail,          Fault::late,      Fault::old_head,   Fault::twice,
                                 Fault::other_command, Fault::unfetched, Fault::other_head, Fault::other_phase};
  std::mt19937_64 random(number);
  const std::uint64_t drawn = random() % 100;
  return drawn < faults.size() ? faults[drawn] : Fault::none;
}

}  // namespace penstock::test
