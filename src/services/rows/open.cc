// How a table is found in what a name means.
#include <algorithm>
#include <utility>

#include "services/models/contents.h"
#include "services/models/open_store.h"
#include "services/rows/npy.h"
#include "services/rows/table.h"

namespace penstock::rows {
namespace {

Error in_store(const std::string& name, Error error) {
  error.message = name + ": " + error.message;
  return error;
}

Result<std::shared_ptr<const Table>> make_table(const Context& context, TableInfo info, Store store, const Place& place,
                                                const RowsOptions& options) {
  auto shard = Shard::open(context, std::move(store), place, info.row_bytes, options);
  if (!shard) return std::move(shard).error();
  return std::shared_ptr<const Table>(std::make_shared<Table>(context, std::move(info), std::vector{*shard}, options));
}

// A write that is under way has changed the identity already, so it would not be noticed later.
Result<Store> without_writers(Result<Store> store) {
  if (store) store->await_writers();
  return store;
}

Result<std::string> read_text(const Context& context, const Store& store, std::uint64_t size_bytes) {
  std::string text(size_bytes, '\0');
  const Report report = context.read(store, 0, Region::host(text.data(), text.size()));
  if (!report.ok()) return *report.error;
  return text;
}

// A row is a step of the first dimension, so one alone has the size of all rows.
Result<std::uint64_t> row_bytes_of(TensorInfo tensor) {
  if (tensor.shape.empty()) {
    return Error{Code::unsupported, 0, "tensor \"" + tensor.name + "\" is one number and has no rows",
                 "name a tensor with dimensions"};
  }
  if (tensor.shape[0] == 0) {
    // As if it had some: eight have whole bytes, whatever the type.
    tensor.shape[0] = 8;
    const auto bytes = models::tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return models::in_file("tensor " + models::in_quotes(tensor.name), bytes.error());
    tensor.size_bytes = *bytes;
  }
  const Interval one{0, 1};
  const auto bytes = part_bytes(tensor, 0, {&one, 1});
  if (!bytes) {
    const bool has_blocks = !tensor.quantization.empty();
    return Error{bytes.error().code, 0,
                 "tensor " + models::in_quotes(tensor.name) + " has rows that are no whole " +
                     (has_blocks ? "blocks of " + std::string(tensor.quantization)
                                 : "bytes: its elements are of " + std::string(dtype_name(tensor.dtype))),
                 "load the tensor as a whole, or name another"};
  }
  if (*bytes == 0) {
    return Error{Code::unsupported, 0, "tensor \"" + tensor.name + "\" has rows without bytes", "name another"};
  }
  return bytes;
}

}  // namespace

Result<std::shared_ptr<const Table>> open_tensor(const Context& context, const std::string& name,
                                                 std::string_view tensor, const RowsOptions& options) {
  const auto model = Model::open(context, name);
  if (!model) return model.error();
  const auto found = model->find(tensor);
  if (!found) {
    return Error{Code::not_found, 0, name + " has no tensor \"" + std::string(tensor) + "\"",
                 "penstock inspect lists those that there are"};
  }
  const TensorInfo& about = model->tensors()[*found];
  if (!about.packing.empty()) {
    return Error{Code::unsupported, 0, name + ": tensor \"" + about.name + "\" is packed, and has no rows in the file",
                 "unpack the model first: penstock unpack"};
  }
  const auto row_bytes = row_bytes_of(about);
  if (!row_bytes) return in_store(name, row_bytes.error());
  auto store = without_writers(models::open_store(context, model->files()[about.file]));
  if (!store) return std::move(store).error();
  TableInfo info{.row_bytes = *row_bytes,
                 .row_shape = {about.shape.begin() + 1, about.shape.end()},
                 .dtype = std::string(about.quantization.empty() ? dtype_name(about.dtype) : about.quantization)};
  return make_table(context, std::move(info), std::move(*store), {about.offset, *row_bytes, about.shape[0]}, options);
}

Result<std::shared_ptr<const Table>> open_npy(const Context& context, const std::string& name,
                                              const RowsOptions& options) {
  auto store = without_writers(context.open(name));
  if (!store) return std::move(store).error();
  const std::uint64_t size_bytes = store->info().size_bytes;
  const auto front = read_text(context, *store, std::min(npy_front_bytes, size_bytes));
  if (!front) return front.error();
  if (!name.ends_with(".npy") && !begins_as_npy(*front)) {
    return Error{Code::invalid_argument, 0, name + ": which rows? It does not begin as .npy files do",
                 "name a tensor of a model, or give row_bytes or a dtype"};
  }
  const auto header_bytes = npy_header_bytes(*front, size_bytes);
  if (!header_bytes) return in_store(name, header_bytes.error());
  const auto header = read_text(context, *store, *header_bytes);
  if (!header) return header.error();
  auto array = parse_npy(*header, size_bytes);
  if (!array) return in_store(name, std::move(array).error());
  if (array->shape.empty()) {
    return Error{Code::unsupported, 0, name + " is one number and has no rows", "save an array with dimensions"};
  }
  TableInfo info{.row_bytes = array->element_bytes,
                 .row_shape = {array->shape.begin() + 1, array->shape.end()},
                 .dtype = std::move(array->dtype)};
  // It does not overflow: parse_npy has multiplied all but those of 0.
  for (const std::uint64_t length : info.row_shape) info.row_bytes *= length;
  if (info.row_bytes == 0) return Error{Code::unsupported, 0, name + " has rows without bytes", "save another array"};
  const Place place{array->data_offset, info.row_bytes, array->shape[0]};
  return make_table(context, std::move(info), std::move(*store), place, options);
}

Result<std::shared_ptr<const Table>> open_raw(const Context& context, const std::string& name, const RawRows& raw,
                                              const RowsOptions& options) {
  const std::uint64_t stride = raw.stride_bytes == 0 ? raw.row_bytes : raw.stride_bytes;
  if (raw.row_bytes == 0 || stride < raw.row_bytes) {
    return Error{Code::invalid_argument, 0,
                 "rows of " + std::to_string(raw.row_bytes) + " bytes, one every " + std::to_string(stride) +
                     " bytes, are no table",
                 "give a size above 0, and a stride that is not below it"};
  }
  auto store = context.open(name, {.growing = raw.growing});
  if (!raw.growing) store = without_writers(std::move(store));
  if (!store) return std::move(store).error();
  const std::uint64_t size_bytes = store->info().size_bytes;
  if (raw.offset > size_bytes) {
    return Error{
        Code::out_of_range, 0,
        name + " has " + std::to_string(size_bytes) + " bytes, and its rows begin at " + std::to_string(raw.offset),
        "give an offset within it"};
  }
  const std::uint64_t left = size_bytes - raw.offset;
  // The last row need not be followed by the gap to the next.
  const std::uint64_t fitting = left < raw.row_bytes ? 0 : (left - raw.row_bytes) / stride + 1;
  if (raw.count == RawRows::all) {
    if (fitting * stride < left) {
      return Error{Code::invalid_argument, 0,
                   name + " has " + std::to_string(left) + " bytes of rows, which are no whole rows of " +
                       std::to_string(raw.row_bytes),
                   "give the right size, or how many rows there are"};
    }
  } else if (raw.count > fitting) {
    return Error{Code::out_of_range, 0,
                 name + " has room for " + std::to_string(fitting) + " rows, and " + std::to_string(raw.count) +
                     " are asked for",
                 "give the right size and count"};
  }
  const Place place{raw.offset, stride, std::min(raw.count, fitting), raw.growing};
  return make_table(context, {.row_bytes = raw.row_bytes, .row_shape = raw.row_shape, .dtype = raw.dtype},
                    std::move(*store), place, options);
}

}  // namespace penstock::rows
