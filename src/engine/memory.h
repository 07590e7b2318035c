// Memory: the ability of an engine to learn of memory before an operation names it. Attached: what it has learnt.
//
// Thread safety: any thread. Lifetime: an Attached goes before its engine and before its memory, and when no Op in
// flight names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "penstock/region.h"
#include "penstock/result.h"

namespace penstock::engine {

class Store;

// Which memory of the host an engine's operations can name. For the rest core copies, through memory that they can.
enum class HostReach : std::uint8_t {
  any,
  attached,  // what it was told of by Memory::attach
  own,       // what Memory::allocate gave
  none,      // it serves GPUs only
};

// Destroyed, it is forgotten.
class Attached {
 public:
  virtual ~Attached() = default;
};

class Memory {
 public:
  virtual ~Memory() = default;
  // Null where knowing the memory gains nothing.
  virtual Result<std::unique_ptr<Attached>> attach(Region memory) = 0;
  // Whether operations on the store can name what is attached.
  virtual bool reaches(const Attached&, const Store&) { return true; }

  // Memory of the host that is the engine's own: freed with its Attached.
  struct Allocated {
    Region memory;
    std::unique_ptr<Attached> attached;
  };
  // For HostReach::own.
  virtual Result<Allocated> allocate(std::size_t) {
    return Error{Code::unsupported, 0, "the engine has no memory of its own", ""};
  }
};

}  // namespace penstock::engine
