#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "penstock/checksum.h"
#include "penstock/gpu.h"
#include "services/models/check.h"
#include "services/models/contents.h"
#include "services/models/ending.h"
#include "services/models/safetensors.h"

namespace penstock {

using models::in_quotes;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t data_alignment = 4096;
constexpr auto progress_interval = std::chrono::milliseconds(50);

Error wrong_tensor(const TensorToSave& tensor, const std::string& what) {
  return {.code = Code::invalid_argument,
          .message = "tensor " + in_quotes(tensor.name) + ": " + what,
          .hint = "nothing was written"};
}

Status check_tensors(std::span<const TensorToSave> tensors) {
  std::set<std::string_view> names;
  for (const TensorToSave& tensor : tensors) {
    if (tensor.name == models::metadata_key) return wrong_tensor(tensor, "the format keeps this name for itself");
    if (!names.insert(tensor.name).second) return wrong_tensor(tensor, "the name is there twice");
    if (tensor.shape.size() > models::dimension_limit) {
      return wrong_tensor(tensor, "its shape has more than 64 dimensions");
    }
    const Result<std::uint64_t> bytes = models::tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return wrong_tensor(tensor, bytes.error().message);
    if (*bytes != tensor.memory.size_bytes) {
      return wrong_tensor(tensor, "its shape needs " + std::to_string(*bytes) + " bytes, and its memory has " +
                                      std::to_string(tensor.memory.size_bytes));
    }
  }
  return {};
}

// Saves one file. The order is that of safetensors itself: larger types first, so that every tensor begins at a
// multiple of the size of its elements.
class Saving {
 public:
  Saving(Context& context, std::span<const TensorToSave> tensors, const SaveOptions& options)
      : context_(context), options_(options) {
    for (const TensorToSave& tensor : tensors) {
      order_.push_back(&tensor);
      data_bytes_ += tensor.memory.size_bytes;
    }
    std::ranges::sort(order_, [](const TensorToSave* a, const TensorToSave* b) {
      return std::tuple(b->dtype, std::string_view(a->name)) < std::tuple(a->dtype, std::string_view(b->name));
    });
    sums_.resize(order_.size(), std::string(Checksum().hex().size(), '0'));
  }

  Result<Report> save(const std::string& path) {
    if (Status status = make_header(); !status) return std::move(status).error();
    std::error_code failed;
    // An absolute path is a path whatever it looks like.
    Result<Store> store = context_.open(std::filesystem::absolute(path, failed).string(),
                                        {.access = Access::replace, .size_bytes = header_.size() + data_bytes_});
    if (!store) return std::move(store).error();
    Result<Report> report = write(*store);
    if (report && report->ok()) {
      Status committed = store->commit(options_.durable);
      if (!committed) return std::move(committed).error();
      return report;
    }
    (void)store->abort();
    if (!report) return report;
    return report->error.value_or(Error{Code::internal, 0, path + " was not written", ""});
  }

 private:
  // The 8 bytes of its length, the JSON, and spaces up to where the data begins.
  Status make_header() {
    try {
      header_ = header_json();
    } catch (const nlohmann::json::type_error&) {
      return Error{Code::invalid_argument, 0, "a name or a text of the metadata is not UTF-8", "nothing was written"};
    }
    const std::uint64_t used = models::safetensors_length_bytes + header_.size();
    const std::uint64_t length = (used + data_alignment - 1) / data_alignment * data_alignment;
    header_.resize(length - models::safetensors_length_bytes, ' ');
    if (header_.size() > models::header_limit_bytes) {
      return Error{Code::invalid_argument, 0, "the header would have more than 100,000,000 bytes",
                   "save fewer tensors in one file"};
    }
    std::string length_bytes;
    for (std::size_t i = 0; i < models::safetensors_length_bytes; ++i) {
      length_bytes += static_cast<char>(header_.size() >> (8 * i));
    }
    header_ = length_bytes + header_;
    return {};
  }

  // Entry by entry: an object that keeps its order would look through all of them for each.
  std::string header_json() const {
    std::map<std::string, std::string> metadata = options_.metadata;
    metadata.erase(std::string(models::checksums_key));  // those of other bytes
    if (options_.checksums) metadata.emplace(models::checksums_key, checksums_json());
    std::string text;
    if (!metadata.empty()) text = json_of(models::metadata_key) + ":" + nlohmann::json(metadata).dump();
    std::uint64_t offset = 0;
    for (const TensorToSave* tensor : order_) {
      const std::uint64_t end = offset + tensor->memory.size_bytes;
      if (!text.empty()) text += ",";
      text += json_of(tensor->name) + R"(:{"dtype":")" + std::string(dtype_name(tensor->dtype)) + R"(","shape":)" +
              nlohmann::json(tensor->shape).dump() + R"(,"data_offsets":[)" + std::to_string(offset) + "," +
              std::to_string(end) + "]}";
      offset = end;
    }
    return "{" + text + "}";
  }

  std::string checksums_json() const {
    std::string text;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      text += (i == 0 ? "" : ",") + json_of(order_[i]->name) + ":" + json_of(sums_[i]);
    }
    return "{" + text + "}";
  }

  static std::string json_of(std::string_view text) { return nlohmann::json(text).dump(); }

  Result<Report> write(const Store& store) {
    std::vector<Range> ranges;
    // With checksums the header is known last; its length is known before.
    if (!options_.checksums) {
      if (Status status = put_header_into_memory(); !status) return std::move(status).error();
      ranges.push_back({&store, 0, header_memory_.region()});
    }
    std::uint64_t offset = header_.size();
    for (const TensorToSave* tensor : order_) {
      if (tensor->memory.size_bytes != 0) ranges.push_back({&store, offset, tensor->memory});
      offset += tensor->memory.size_bytes;
    }
    Result<Ticket> ticket = context_.submit(Direction::write, ranges);
    if (!ticket) return std::move(ticket).error();
    Status summed = options_.checksums ? add_up(*ticket) : Status();
    while (summed && !ticket->wait_for(progress_interval)) summed = tell(*ticket);
    if (!summed) {
      models::end(*ticket);
      if (ticket->outcome() == Outcome::abandoned) return *ticket->report().error;
      return std::move(summed).error();
    }
    Report report = ticket->report();
    if (!report.ok()) return report;
    if (options_.progress && !options_.progress(data_bytes_, data_bytes_)) return cancelled();
    return options_.checksums ? write_header(store, std::move(report)) : report;
  }

  // Into a Buffer, which outlives a request that is abandoned.
  Status put_header_into_memory() {
    Result<Buffer> memory = context_.allocate(Domain::host(), header_.size());
    if (!memory) return std::move(memory).error();
    header_memory_ = std::move(*memory);
    std::memcpy(header_memory_.data(), header_.data(), header_.size());
    return {};
  }

  Result<Report> write_header(const Store& store, Report report) {
    const std::size_t length = header_.size();
    if (Status status = make_header(); !status) return std::move(status).error();
    if (header_.size() != length) return Error{Code::internal, 0, "the header changed its length", ""};
    if (Status status = put_header_into_memory(); !status) return std::move(status).error();
    const Report written = context_.write(store, 0, header_memory_.region());
    if (!written.ok()) return written;
    report.add(written);
    report.seconds += written.seconds;
    return report;
  }

  // While the bytes are being written: of a GPU's memory they come by a window.
  Status add_up(const Ticket& ticket) {
    constexpr std::size_t most_bytes = 8 << 20;
    std::vector<std::byte> window;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      Checksum sum;
      const Region memory = order_[i]->memory;
      for (std::size_t at = 0; at < memory.size_bytes; at += most_bytes) {
        Region piece = memory.part(at, std::min(most_bytes, memory.size_bytes - at));
        if (!memory.domain.host_accessible()) {
          window.resize(most_bytes);
          const Region here = Region::host(window.data(), piece.size_bytes);
          if (Status status = copy(here, piece); !status) return status;
          piece = here;
        }
        sum.add({piece.data, piece.size_bytes});
        if (ticket.ended() && ticket.outcome() != Outcome::done) return {};
        if (Status status = tell(ticket); !status) return status;
      }
      sums_[i] = sum.hex();
    }
    return {};
  }

  Status tell(const Ticket& ticket) {
    const Clock::time_point now = Clock::now();
    if (!options_.progress || now - told_ < progress_interval) return {};
    told_ = now;
    if (options_.progress(std::min(ticket.bytes_done(), data_bytes_), data_bytes_)) return {};
    return cancelled();
  }

  static Error cancelled() {
    return {Code::cancelled, 0, "saving was cancelled", "what was there before is there still"};
  }

  Context& context_;
  const SaveOptions& options_;
  std::vector<const TensorToSave*> order_;
  std::vector<std::string> sums_;  // in that order
  std::uint64_t data_bytes_ = 0;
  std::string header_;
  Buffer header_memory_;
  Clock::time_point told_ = Clock::now();
};

}  // namespace

Result<Report> save_safetensors(Context& context, const std::string& path, std::span<const TensorToSave> tensors,
                                const SaveOptions& options) {
  if (Status status = check_tensors(tensors); !status) return std::move(status).error();
  return Saving(context, tensors, options).save(path);
}

}  // namespace penstock
