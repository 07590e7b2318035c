// Packing: where tensors go that are made together. Those below a limit share slabs, so that thousands of them are few
// allocations and long copies; larger ones have memory of their own, which goes with them.
//
// Thread safety: the caller's.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::python {

// Numbers for each of tens of thousands of tensors, which are not worth an object of Python's each: anything with the
// buffer protocol, as array.array("Q").
using Numbers = nanobind::ndarray<const std::uint64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using NumbersView = nanobind::ndarray<nanobind::memview, const std::uint64_t, nanobind::ndim<1>>;

inline std::span<const std::uint64_t> to_span(const Numbers& numbers) {
  return {numbers.data(), numbers.size()};
}
NumbersView to_view(std::vector<std::uint64_t> numbers);

class Packing {
 public:
  explicit Packing(std::span<const std::uint64_t> sizes);

  struct Slab {
    std::uint32_t first = 0;  // of packed()
    std::uint32_t end = 0;
    std::uint64_t size_bytes = 0;
  };
  const std::vector<std::uint32_t>& alone() const { return alone_; }    // which of the sizes have memory of their own
  const std::vector<std::uint32_t>& packed() const { return packed_; }  // and which are in slabs, in their order
  const std::vector<Slab>& slabs() const { return slabs_; }
  const std::vector<std::uint64_t>& offsets() const { return offsets_; }  // of those that are packed, in their slabs

  // Of every tensor, from the addresses of the slabs and of those that are alone.
  std::vector<std::uint64_t> pointers(std::span<const std::uint64_t> slabs, std::span<const std::uint64_t> alone) const;

 private:
  std::vector<std::uint32_t> alone_;
  std::vector<std::uint32_t> packed_;
  std::vector<Slab> slabs_;
  std::vector<std::uint64_t> offsets_;
};

void define_packing(nanobind::module_& module);

}  // namespace penstock::python
