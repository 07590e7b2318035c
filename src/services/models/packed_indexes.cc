#include "services/models/packed_indexes.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "services/models/contents.h"
#include "services/packed/format.h"

namespace penstock::models {
namespace {

// The index of a tensor, as it is read.
struct Reading {
  std::uint32_t tensor = 0;
  packed::ExpectedTensor expected;
  std::vector<std::byte> bytes;
};

Error in_tensor(const Model& model, std::uint32_t tensor, Error error) {
  const TensorInfo& about = model.tensors()[tensor];
  error.message = model.files()[about.file].path + ": tensor " + in_quotes(about.name) + ": " + error.message;
  return error;
}

Result<Reading> begin_reading(const Model& model, std::uint32_t tensor) {
  const TensorInfo& about = model.tensors()[tensor];
  const packed::Kind kind = packed::kind_from_name(dtype_name(about.dtype)).value();
  const std::uint64_t values = about.size_bytes / packed::division_of(kind).value_bytes;
  Reading reading{.tensor = tensor, .expected = {kind, values, about.stored_bytes}, .bytes = {}};
  const std::uint64_t bytes = packed::index_bytes(values);
  if (bytes > about.stored_bytes) return in_tensor(model, tensor, broken("its index is longer than the tensor"));
  reading.bytes.resize(bytes);
  return reading;
}

}  // namespace

Status PackedIndexes::read(const Context& context, const Model& model, FileStores& stores,
                           std::span<const std::uint32_t> tensors, const RequestOptions& options) {
  PackedIndexes* const indexes = model.packed_.get();
  if (indexes == nullptr) return {};
  std::vector<Reading> readings;
  for (const std::uint32_t tensor : tensors) {
    if (model.tensors()[tensor].packing.empty() || indexes->find(tensor)) continue;
    Result<Reading> reading = begin_reading(model, tensor);
    if (!reading) return std::move(reading).error();
    readings.push_back(std::move(*reading));
  }
  std::ranges::sort(readings, {}, &Reading::tensor);
  const auto file_of = [&](const Reading& reading) { return model.tensors()[reading.tensor].file; };
  RequestOptions alone{.deadline_seconds = options.deadline_seconds, .as_opened = true};
  for (std::size_t next = 0; next < readings.size();) {
    std::deque<Store> opened;  // their addresses stay
    std::vector<Range> ranges;
    const std::size_t first = next;
    for (; next < readings.size(); ++next) {
      Reading& reading = readings[next];
      if (next == first || file_of(readings[next - 1]) != file_of(reading)) {
        if (!stores.fit() && opened.size() == stores.for_one_request()) break;
        Result<Store> store = stores.open(file_of(reading));
        if (!store) return std::move(store).error();
        opened.push_back(std::move(*store));
      }
      ranges.push_back({&opened.back(), model.tensors()[reading.tensor].offset,
                        Region::host(reading.bytes.data(), reading.bytes.size())});
    }
    const Report report = context.transfer(Direction::read, ranges, alone);
    if (!report.ok()) return *report.error;
  }
  for (Reading& reading : readings) {
    Result<packed::TensorIndex> index = packed::read_index(reading.bytes, reading.expected);
    if (!index) return in_tensor(model, reading.tensor, std::move(index).error());
    const TensorInfo& about = model.tensors()[reading.tensor];
    indexes->keep(reading.tensor, std::make_shared<const packed::Unpack>(about.name, std::move(*index), about.offset));
  }
  return {};
}

TensorPlace PackedIndexes::place_of(const Model& model, std::uint32_t tensor) {
  const TensorInfo& about = model.tensors()[tensor];
  return {about.file, about.offset, about.packing.empty() ? nullptr : model.packed_->find(tensor)};
}

std::shared_ptr<const packed::Unpack> PackedIndexes::find(std::uint32_t tensor) const {
  const std::scoped_lock lock(mutex_);
  return tensors_[tensor];
}

void PackedIndexes::keep(std::uint32_t tensor, std::shared_ptr<const packed::Unpack> unpack) {
  const std::scoped_lock lock(mutex_);
  tensors_[tensor] = std::move(unpack);
}

}  // namespace penstock::models
