#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/callback.h"
#include "base/clock.h"
#include "base/out_of_memory.h"
#include "penstock/checksum.h"
#include "penstock/gpu.h"
#include "penstock/models.h"
#include "services/models/check.h"
#include "services/models/ending.h"
#include "services/models/json_text.h"
#include "services/models/open_store.h"
#include "services/models/packed_writer.h"

namespace penstock {

namespace {

constexpr auto progress_interval = std::chrono::milliseconds(50);

// Saves one file.
class Saving {
 public:
  Saving(Context& context, std::span<const TensorToSave> tensors, const SaveOptions& options)
      : context_(context), tensors_(tensors), options_(options) {
    for (const TensorToSave& tensor : tensors) data_bytes_ += tensor.memory.size_bytes;
    sums_.resize(tensors.size(), std::string(Checksum().hex().size(), '0'));
  }

  Result<Report> save(const std::string& path) {
    if (Status status = make_header(); !status) return std::move(status).error();
    Result<Store> store = models::open_to_replace(context_, path, header_.size() + data_bytes_);
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
  Status make_header() {
    SaveOptions options{
        .metadata = options_.metadata, .empty_metadata = options_.empty_metadata, .alignment = options_.alignment};
    options.metadata.erase(std::string(models::checksums_key));  // those of other bytes
    if (options_.checksums) options.metadata.emplace(models::checksums_key, checksums_json());
    Result<SafetensorsHead> head = safetensors_head(tensors_, options);
    if (!head) return std::move(head).error();
    header_ = std::move(head->bytes);
    order_ = std::move(head->order);
    return {};
  }

  std::string checksums_json() const {
    std::string text;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      text += (i == 0 ? "" : ",") + models::json_of(tensors_[i].name) + ":\"" + sums_[i] + "\"";
    }
    return "{" + text + "}";
  }

  Result<Report> write(const Store& store) {
    std::vector<Range> ranges;
    // With checksums the header is known last; its length is known before.
    if (!options_.checksums) {
      if (Status status = put_header_into_memory(); !status) return std::move(status).error();
      ranges.push_back({&store, 0, header_memory_.region()});
    }
    std::uint64_t offset = header_.size();
    for (const std::uint32_t index : order_) {
      const Region& memory = tensors_[index].memory;
      if (memory.size_bytes != 0) ranges.push_back({&store, offset, memory});
      offset += memory.size_bytes;
    }
    Result<Ticket> submitted = context_.submit(Direction::write, ranges);
    if (!submitted) return std::move(submitted).error();
    models::OwnTicket ticket(std::move(*submitted));
    Status summed = options_.checksums ? add_up(*ticket) : Status();
    while (summed && !ticket->wait_for(progress_interval)) summed = tell(*ticket);
    if (!summed) {
      models::end(*ticket);
      if (ticket->outcome() == Outcome::abandoned) return *ticket->report().error;
      return std::move(summed).error();
    }
    Report report = ticket->report();
    if (!report.ok()) return report;
    if (options_.progress && !ask(data_bytes_)) return cancelled();
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
    for (const std::uint32_t index : order_) {
      Checksum sum;
      const Region memory = tensors_[index].memory;
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
      sums_[index] = sum.hex();
    }
    return {};
  }

  Status tell(const Ticket& ticket) {
    const TimePoint now = Clock::now();
    if (!options_.progress || now - told_ < progress_interval) return {};
    told_ = now;
    return ask(std::min(ticket.bytes_done(), data_bytes_)) ? Status() : cancelled();
  }

  // Whether to go on.
  bool ask(std::uint64_t done_bytes) const {
    return call_back("SaveOptions::progress", options_.progress, done_bytes, data_bytes_);
  }

  static Error cancelled() { return {Code::cancelled, 0, "saving was cancelled", "the old file is still there"}; }

  Context& context_;
  const std::span<const TensorToSave> tensors_;
  const SaveOptions& options_;
  std::vector<std::uint32_t> order_;  // in the file
  std::vector<std::string> sums_;     // of each tensor
  std::uint64_t data_bytes_ = 0;
  std::string header_;
  Buffer header_memory_;
  TimePoint told_ = Clock::now();
};

// Tensors in memory, of the host or of GPUs.
class MemorySource : public models::TensorSource {
 public:
  explicit MemorySource(std::span<const TensorToSave> tensors) : tensors_(tensors) {}
  Result<Ticket> read(std::span<const Bytes> wanted) override {
    for (const Bytes& bytes : wanted) {
      Status copied = copy(bytes.to, tensors_[bytes.tensor].memory.part(bytes.begin, bytes.to.size_bytes));
      if (!copied) return std::move(copied).error();
    }
    return Ticket();
  }

 private:
  const std::span<const TensorToSave> tensors_;
};

Result<Report> save_packed(Context& context, const std::string& path, std::span<const TensorToSave> tensors,
                           const SaveOptions& options) {
  std::uint64_t all_bytes = 0;
  for (const TensorToSave& tensor : tensors) all_bytes += tensor.memory.size_bytes;
  TimePoint told = Clock::now();
  const auto ask = [&](std::uint64_t done) -> Status {
    if (call_back("SaveOptions::progress", options.progress, done, all_bytes)) return {};
    return Error{Code::cancelled, 0, "saving was cancelled", "the old file is still there"};
  };
  models::WriterOptions writing{.threads = context.machine().usable_cpus,
                                .durable = options.durable,
                                .metadata = options.metadata,
                                .empty_metadata = options.empty_metadata};
  if (options.progress) {
    writing.progress = [&](std::uint64_t done) {
      const TimePoint now = Clock::now();
      if (now - told < progress_interval) return Status();
      told = now;
      return ask(done);
    };
  }
  MemorySource source(tensors);
  Result<models::WrittenFile> written = models::write_packed(context, path, tensors, source, writing);
  if (!written) return std::move(written).error();
  if (options.progress) (void)ask(all_bytes);
  return std::move(written->report);
}

}  // namespace

Result<Report> save_safetensors(Context& context, const std::string& path, std::span<const TensorToSave> tensors,
                                const SaveOptions& options) {
  if (options.packed) return or_out_of_memory([&] { return save_packed(context, path, tensors, options); });
  return or_out_of_memory([&] { return Saving(context, tensors, options).save(path); });
}

}  // namespace penstock
