#include "packing.h"

#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

namespace nb = nanobind;

namespace penstock::python {
namespace {

constexpr std::uint64_t alone_from_bytes = 1 << 20;
constexpr std::uint64_t slab_bytes_most = 32 << 20;
constexpr std::uint64_t alignment = 256;

}  // namespace

NumbersView to_view(std::vector<std::uint64_t> numbers) {
  auto kept = std::make_unique<std::vector<std::uint64_t>>(std::move(numbers));
  const std::vector<std::uint64_t>& values = *kept;
  const nb::capsule owner(kept.get(), [](void* pointer) noexcept {
    delete static_cast<std::vector<std::uint64_t>*>(pointer);  // NOLINT(cppcoreguidelines-owning-memory)
  });
  (void)kept.release();
  return {values.data(), {values.size()}, owner};
}

Packing::Packing(std::span<const std::uint64_t> sizes) {
  for (std::uint32_t place = 0; place < sizes.size(); ++place) {
    if (sizes[place] >= alone_from_bytes) {
      alone_.push_back(place);
      continue;
    }
    const std::uint64_t taken = (sizes[place] + alignment - 1) / alignment * alignment;
    if (slabs_.empty() || slabs_.back().size_bytes + taken > slab_bytes_most) {
      slabs_.push_back({static_cast<std::uint32_t>(packed_.size()), static_cast<std::uint32_t>(packed_.size()), 0});
    }
    Slab& slab = slabs_.back();
    packed_.push_back(place);
    offsets_.push_back(slab.size_bytes);
    slab.size_bytes += taken;
    ++slab.end;
  }
}

std::vector<std::uint64_t> Packing::pointers(std::span<const std::uint64_t> slabs,
                                             std::span<const std::uint64_t> alone) const {
  if (slabs.size() != slabs_.size() || alone.size() != alone_.size()) throw nb::value_error("an address for each");
  std::vector<std::uint64_t> pointers(packed_.size() + alone_.size());
  for (std::size_t i = 0; i < alone_.size(); ++i) pointers[alone_[i]] = alone[i];
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    for (std::uint32_t j = slabs_[i].first; j < slabs_[i].end; ++j) pointers[packed_[j]] = slabs[i] + offsets_[j];
  }
  return pointers;
}

void define_packing(nb::module_& module) {
  module.attr("OWN_BYTES") = alone_from_bytes;
  module.attr("SLAB_BYTES") = slab_bytes_most;
  module.attr("ALIGNMENT") = alignment;
  nb::class_<Packing>(module, "Packing")
      .def("__init__", [](Packing* self, const Numbers& sizes) { new (self) Packing(to_span(sizes)); })
      .def_prop_ro("alone", &Packing::alone)
      .def_prop_ro("packed", &Packing::packed)
      .def_prop_ro("offsets", &Packing::offsets)
      // (first, end, size in bytes)
      .def_prop_ro("slabs",
                   [](const Packing& self) {
                     nb::list slabs;
                     for (const Packing::Slab& slab : self.slabs()) {
                       slabs.append(nb::make_tuple(slab.first, slab.end, slab.size_bytes));
                     }
                     return slabs;
                   })
      .def("pointers", [](const Packing& self, const std::vector<std::uint64_t>& slabs,
                          const std::vector<std::uint64_t>& alone) { return to_view(self.pointers(slabs, alone)); });
}

}  // namespace penstock::python
