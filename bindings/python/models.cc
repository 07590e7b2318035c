#include "penstock/models.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "abandoned.h"
#include "context.h"
#include "errors.h"
#include "gil.h"
#include "models.h"
#include "packing.h"
#include "waiting.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using Intervals = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
// By tensor: the dimension, and what is wanted along it.
using Slices = std::map<std::uint32_t, std::pair<std::uint32_t, Intervals>>;
// Whole or sliced tensors that go to one domain, and where. No list of tensors: all.
using Group = std::tuple<std::string, std::optional<std::vector<std::uint32_t>>, Numbers>;
// Name, dtype, shape, pointer, size, domain.
using Saved =
    std::tuple<std::string, std::string, std::vector<std::uint64_t>, std::uintptr_t, std::size_t, std::string>;

std::vector<Interval> to_intervals(const Intervals& pairs) {
  std::vector<Interval> intervals;
  for (const auto& [begin, end] : pairs) intervals.push_back({begin, end});
  return intervals;
}

nb::object file_name(const std::string& path) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

nb::object to_tuple(const std::vector<std::uint64_t>& numbers) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromUnsignedLongLong(numbers[i]));
  }
  return tuple;
}

// Without a Context, by paths.
Model open_model(PythonContext* self, const std::vector<nb::bytes>& paths) {
  std::vector<std::string> names;
  for (const nb::bytes& path : paths) names.push_back(to_string(path));
  if (self == nullptr) {
    return value_or_raise(without_gil([&] { return names.size() == 1 ? Model::open(names[0]) : Model::open(names); }));
  }
  const auto context = self->get();
  return value_or_raise(
      without_gil([&] { return names.size() == 1 ? Model::open(*context, names[0]) : Model::open(*context, names); }));
}

nb::list files_of(const Model& model) {
  nb::list files;
  for (const ModelFile& file : model.files()) {
    nb::dict metadata;
    for (const auto& [key, value] : file.metadata) metadata[nb::str(key.data(), key.size())] = value.text();
    files.append(nb::make_tuple(file_name(file.path), std::string(model_format_name(file.format)), file.size_bytes,
                                file.data_offset, metadata));
  }
  return files;
}

// One object for each different value: there may be tens of thousands of tensors, of few types and shapes.
template <typename Key>
class Shared {
 public:
  template <typename Make>
  nb::object get(const Key& key, Make make) {
    const auto [place, is_new] = objects_.try_emplace(key);
    if (is_new) place->second = make(key);
    return place->second;
  }

 private:
  std::map<Key, nb::object> objects_;
};

nb::list tensors_of(const Model& model) {
  const auto text = [](std::string_view value) { return nb::object(nb::str(value.data(), value.size())); };
  Shared<std::string_view> texts;
  Shared<std::vector<std::uint64_t>> shapes;
  nb::list tensors;
  for (const TensorInfo& tensor : model.tensors()) {
    tensors.append(nb::make_tuple(tensor.name, texts.get(dtype_name(tensor.dtype), text),
                                  shapes.get(tensor.shape, to_tuple), tensor.size_bytes, tensor.file, tensor.offset,
                                  texts.get(tensor.quantization, text), tensor.stored_bytes,
                                  texts.get(tensor.packing, text)));
  }
  return tensors;
}

NumbersView sizes_of(const Model& model) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(model.tensors().size());
  for (const TensorInfo& tensor : model.tensors()) sizes.push_back(tensor.size_bytes);
  return to_view(std::move(sizes));
}

// All that there are, each once.
std::vector<std::string> dtypes_of(const Model& model) {
  std::set<DType> dtypes;
  for (const TensorInfo& tensor : model.tensors()) dtypes.insert(tensor.dtype);
  std::vector<std::string> names;
  for (const DType dtype : dtypes) names.emplace_back(dtype_name(dtype));
  return names;
}

const TensorInfo& tensor_at(const Model& model, std::uint32_t index) {
  if (index >= model.tensors().size()) throw nb::index_error("there is no such tensor");
  return model.tensors()[index];
}

// Shape and size of a part.
nb::tuple describe_part(const Model& model, std::uint32_t index, std::uint32_t dimension, const Intervals& pairs) {
  const TensorInfo& tensor = tensor_at(model, index);
  const std::vector<Interval> intervals = to_intervals(pairs);
  return nb::make_tuple(to_tuple(value_or_raise(part_shape(tensor, dimension, intervals))),
                        value_or_raise(part_bytes(tensor, dimension, intervals)));
}

// A load under way, with references to all whose memory it fills.
class PythonLoading {
 public:
  PythonLoading(std::shared_ptr<Context> context, std::shared_ptr<const std::atomic<bool>> closed,
                std::shared_ptr<Loading> loading, nb::object memory)
      : context_(std::move(context)),
        closed_(std::move(closed)),
        loading_(std::move(loading)),
        memory_(std::move(memory)) {}
  PythonLoading(PythonLoading&&) = default;
  PythonLoading& operator=(PythonLoading&&) = delete;
  ~PythonLoading() {
    if (!context_) return;
    if (!loading_->ended()) cancel();
    if (loading_->report().transfer.outcome == Outcome::abandoned) keep_abandoned(context_, std::move(memory_));
  }

  bool ended() const { return loading_->ended(); }
  nb::dict wait(nb::handle progress) {
    wait_or_cancel(*loading_, loading_->bytes_wanted(), progress);
    const LoadReport report = loading_->report();
    nb::dict result = to_dict(report.transfer);
    result["seconds"] = report.seconds;
    result["wanted_bytes"] = report.wanted_bytes;
    result["read_bytes"] = report.read_bytes;
    result["packed_bytes"] = report.packed_bytes;
    result["stored_bytes"] = report.stored_bytes;
    if (report.ok()) return result;
    // Closing cancels loads, which hold the Context.
    const bool is_closed = report.transfer.error->code == Code::cancelled && *closed_;
    raise(is_closed ? Error{Code::closed, 0, "the Context was closed before all of the model was there", ""}
                    : *report.transfer.error,
          result);
  }
  void cancel() {
    const WithoutGil released;
    loading_->cancel();
  }

 private:
  std::shared_ptr<Context> context_;  // shared: a load goes on while Python forgets its Context; none: moved from
  std::shared_ptr<const std::atomic<bool>> closed_;  // shared with that
  std::shared_ptr<Loading> loading_;                 // shared: closing the Context may be about to cancel it
  nb::object memory_;
};

std::vector<TensorPart> parts_of(const Model& model, const std::vector<Group>& groups, const Slices& slices) {
  std::vector<TensorPart> parts;
  for (const auto& [domain_name, tensors, addresses] : groups) {
    const Domain domain = value_or_raise(Domain::parse(domain_name));
    const std::span<const std::uint64_t> pointers = to_span(addresses);
    const std::size_t count = tensors ? tensors->size() : model.tensors().size();
    if (count != pointers.size()) throw nb::value_error("as many pointers as tensors");
    parts.reserve(parts.size() + count);
    for (std::size_t i = 0; i < count; ++i) {
      TensorPart part{.tensor = tensors ? (*tensors)[i] : static_cast<std::uint32_t>(i)};
      std::uint64_t size_bytes = tensor_at(model, part.tensor).size_bytes;
      if (const auto slice = slices.find(part.tensor); slice != slices.end()) {
        part.dimension = slice->second.first;
        part.intervals = to_intervals(slice->second.second);
        size_bytes = value_or_raise(part_bytes(model.tensors()[part.tensor], part.dimension, part.intervals));
      }
      part.memory = {reinterpret_cast<std::byte*>(pointers[i]), size_bytes, domain};
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

Columns columns_from(const std::string& name) {
  if (name == "auto") return Columns::automatic;
  if (name == "pieces") return Columns::pieces;
  if (name == "whole") return Columns::whole;
  raise({Code::invalid_argument, 0, "columns: " + name, "give auto, pieces or whole"});
}

PythonLoading start_load(PythonContext& self, const Model& model, const std::vector<Group>& groups,
                         const Slices& slices, const std::string& columns, nb::object memory) {
  auto context = self.get();
  const std::vector<TensorPart> parts = parts_of(model, groups, slices);
  const LoadOptions options{.columns = columns_from(columns)};
  auto started = without_gil([&] { return load(*context, model, parts, options); });
  auto loading = std::make_shared<Loading>(value_or_raise(std::move(started)));
  const bool closed = !self.add(loading);
  PythonLoading started_load(std::move(context), self.closed(), std::move(loading), std::move(memory));
  if (closed) raise_closed();  // while it was started; its end cancels it
  return started_load;
}

// None where the file is not to be mapped.
std::optional<MappedFile> map_file(PythonContext& self, const Model& model, std::uint32_t file, bool cold_too) {
  if (file >= model.files().size()) throw nb::index_error("there is no such file");
  const auto context = self.get();
  const auto which = cold_too ? MappedFile::Which::any : MappedFile::Which::cached;
  return value_or_raise(without_gil([&] { return MappedFile::map(*context, model.files()[file], which); }));
}

// Of offset and size.
using Pieces = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

std::vector<MappedFile::Piece> to_pieces(const Pieces& pairs) {
  std::vector<MappedFile::Piece> pieces;
  for (const auto& [offset, size_bytes] : pairs) pieces.push_back({offset, size_bytes});
  return pieces;
}

void populate(const MappedFile& file, PythonContext& self, const Pieces& pieces) {
  const auto context = self.get();
  without_gil([&, wanted = to_pieces(pieces)] { file.populate(*context, wanted); });
}

void read_ahead(const MappedFile& file, PythonContext& self, const Pieces& pieces, std::uint64_t most_bytes) {
  const auto context = self.get();
  without_gil([&, wanted = to_pieces(pieces)] { file.read_ahead(*context, wanted, most_bytes); });
}

// The whole file as a memoryview, which keeps the mapping.
nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>, nb::device::cpu> memory_of(nb::handle_t<MappedFile> self) {
  const auto& file = nb::cast<const MappedFile&>(self);
  return {reinterpret_cast<std::uint8_t*>(file.data()), {static_cast<std::size_t>(file.size_bytes())}, self};
}

// Fresh memory that is about to be filled: in large pages it costs a fraction of the page faults.
void use_huge_pages(const Pieces& memory) {
  constexpr std::uint64_t huge_bytes = 2 << 20;
  for (const auto& [pointer, size_bytes] : memory) {
    const std::uint64_t begin = (pointer + huge_bytes - 1) / huge_bytes * huge_bytes;
    const std::uint64_t end = (pointer + size_bytes) / huge_bytes * huge_bytes;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
}

// Calls back into Python from a thread without the GIL. What that raises, or a signal, ends the work; `rethrow` passes
// it on once the work has ended.
class ProgressCall {
 public:
  explicit ProgressCall(nb::object progress) : progress_(std::move(progress)) {}

  bool operator()(std::uint64_t done, std::uint64_t all) {
    const WithGil acquired;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!progress_.is_none()) progress_(done, all);
    } catch (...) {
      raised_ = std::current_exception();
    }
    return raised_ == nullptr;
  }
  void rethrow() const {
    if (raised_ != nullptr) std::rethrow_exception(raised_);
  }

 private:
  nb::object progress_;
  std::exception_ptr raised_;
};

std::vector<TensorToSave> to_save(const std::vector<Saved>& tensors) {
  std::vector<TensorToSave> wanted;
  for (const auto& [name, dtype, shape, pointer, size_bytes, domain] : tensors) {
    const auto type = dtype_from_name(dtype);
    if (!type) raise({Code::invalid_argument, 0, "there is no dtype " + dtype, "see DType"});
    wanted.push_back({name,
                      *type,
                      shape,
                      {reinterpret_cast<std::byte*>(pointer), size_bytes, value_or_raise(Domain::parse(domain))}});
  }
  return wanted;
}

// None is not the same as an empty one.
using Metadata = std::optional<std::map<std::string, std::string>>;
constexpr std::uint64_t safetensors_alignment = 8;

void set_metadata(SaveOptions& options, const Metadata& metadata) {
  options.metadata = metadata.value_or(std::map<std::string, std::string>());
  options.empty_metadata = metadata.has_value();
}

// The first bytes of a file, and which tensors come behind them one after the other.
nb::tuple safetensors_head_of(const std::vector<Saved>& tensors, const Metadata& metadata) {
  SaveOptions options{.alignment = safetensors_alignment};
  set_metadata(options, metadata);
  const SafetensorsHead head = value_or_raise(safetensors_head(to_save(tensors), options));
  return nb::make_tuple(nb::bytes(head.bytes.data(), head.bytes.size()), head.order);
}

nb::dict save(PythonContext& self, const nb::bytes& path, const std::vector<Saved>& tensors, const Metadata& metadata,
              std::uint64_t alignment, bool durable, bool checksums, bool packed, nb::object progress) {
  const auto context = self.get();
  const std::vector<TensorToSave> wanted = to_save(tensors);
  ProgressCall call(std::move(progress));
  SaveOptions options{.alignment = alignment,
                      .durable = durable,
                      .checksums = checksums,
                      .packed = packed,
                      .progress = [&](std::uint64_t done, std::uint64_t all) { return call(done, all); }};
  set_metadata(options, metadata);
  const std::string name = to_string(path);
  auto report = without_gil([&] { return save_safetensors(*context, name, wanted, options); });
  call.rethrow();
  return to_dict(value_or_raise(std::move(report)));
}

nb::list verify(PythonContext& self, const Model& model, nb::object progress) {
  const auto context = self.get();
  ProgressCall call(std::move(progress));
  auto checked = without_gil([&] {
    return check_model(*context, model, [&](std::uint64_t done, std::uint64_t all) { return call(done, all); });
  });
  call.rethrow();
  nb::list files;
  for (const CheckedFile& file : value_or_raise(std::move(checked))) {
    files.append(
        nb::make_tuple(file_name(file.path), std::string(verdict_name(file.verdict)), file.how, file.wrong_tensors));
  }
  return files;
}

}  // namespace

void define_models(nb::module_& module) {
  nb::class_<Model>(module, "Model")
      .def_prop_ro("files", &files_of)
      .def_prop_ro("warnings", [](const Model& model) { return model.warnings(); })
      .def_prop_ro("tensors", &tensors_of)
      .def_prop_ro("tensor_count", [](const Model& model) { return model.tensors().size(); })
      .def_prop_ro("sizes", &sizes_of, nb::rv_policy::automatic)
      .def_prop_ro("dtypes", &dtypes_of)
      .def("describe_part", &describe_part, nb::arg("tensor"), nb::arg("dimension"), nb::arg("intervals"));
  module.def("open_model", &open_model, nb::arg("context").none(), nb::arg("paths"));
  nb::class_<PythonLoading>(module, "Loading")
      .def_prop_ro("ended", &PythonLoading::ended)
      .def("wait", &PythonLoading::wait, nb::arg("progress").none() = nb::none())
      .def("cancel", &PythonLoading::cancel);
  module.def("load", &start_load, nb::arg("context"), nb::arg("model"), nb::arg("groups"), nb::arg("slices"),
             nb::arg("columns"), nb::arg("memory").none());
  nb::class_<MappedFile>(module, "MappedFile")
      .def_prop_ro("memory", &memory_of)
      .def_prop_ro("was_cached", &MappedFile::was_cached)
      .def("populate", &populate, nb::arg("context"), nb::arg("pieces"))
      .def("read_ahead", &read_ahead, nb::arg("context"), nb::arg("pieces"), nb::arg("most_bytes"));
  module.def("map_file", &map_file, nb::arg("context"), nb::arg("model"), nb::arg("file"), nb::arg("cold_too"));
  module.def("use_huge_pages", &use_huge_pages, nb::arg("memory"));
  module.def("safetensors_head", &safetensors_head_of, nb::arg("tensors"), nb::arg("metadata").none());
  module.def("save", &save, nb::arg("context"), nb::arg("path"), nb::arg("tensors"), nb::arg("metadata").none(),
             nb::arg("alignment"), nb::arg("durable"), nb::arg("checksums"), nb::arg("packed"),
             nb::arg("progress").none());
  module.def("verify", &verify, nb::arg("context"), nb::arg("model"), nb::arg("progress").none());
}

}  // namespace penstock::python
