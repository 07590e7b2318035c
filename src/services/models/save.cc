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

// So much is copied into the page cache by this thread, before others would have begun: they would take turns there.
constexpr std::uint64_t copied_here_bytes_max = 64 << 20;
// One system call each; short tensors share one.
constexpr std::uint64_t copied_at_once_bytes = 4 << 20;
constexpr std::uint64_t gathered_bytes = 512 << 10;

// Writes a file from its beginning to its end, by this thread.
class Copying {
 public:
  // `gathered`: for short pieces. A Buffer, which outlives a request that is abandoned.
  Copying(const Context& context, const Store& store, Buffer gathered)
      : context_(context), store_(store), gathered_(std::move(gathered)) {}

  Status add(const Region& memory) {
    const std::uint64_t bytes = memory.size_bytes;
    const bool is_long = bytes > gathered_.size_bytes() / 2;
    if (is_long || bytes > gathered_.size_bytes() - gathered_now_) {
      if (Status status = write_gathered(); !status) return status;
    }
    if (is_long) return write(memory);
    if (bytes != 0) std::memcpy(gathered_.data() + gathered_now_, memory.data, bytes);
    gathered_now_ += bytes;
    return {};
  }
  Status write_gathered() { return write(gathered_.region().part(0, std::exchange(gathered_now_, 0))); }
  Report report() { return std::move(report_); }

 private:
  Status write(const Region& memory) {
    for (std::uint64_t done = 0; done < memory.size_bytes;) {
      const std::uint64_t length = std::min(copied_at_once_bytes, memory.size_bytes - done);
      Report written = context_.write(store_, at_, memory.part(done, length));
      if (!written.ok()) return std::move(*written.error);
      report_.add(written);
      report_.seconds += written.seconds;
      done += length;
      at_ += length;
    }
    return {};
  }

  const Context context_;
  const Store& store_;
  Buffer gathered_;
  std::uint64_t gathered_now_ = 0;
  std::uint64_t at_ = 0;  // in the file: what is gathered begins there
  Report report_;
};

// Saves one file.
class Saving {
 public:
  Saving(const Context& context, std::span<const TensorToSave> tensors, const SaveOptions& options)
      : context_(context), tensors_(tensors), options_(options) {
    for (const TensorToSave& tensor : tensors) data_bytes_ += tensor.memory.size_bytes;
    sums_.resize(tensors.size(), std::string(Checksum().hex().size(), '0'));
  }

  Result<Report> save(const std::string& path) {
    if (Status status = make_header(); !status) return std::move(status).error();
    // Unsynced, blocks that are chosen when they are written are better than reserved ones: ext4 writes them to the
    // disk before it gives the file the name of another, so a power cut leaves the old one or the new one.
    const std::uint64_t all_bytes = header_.size() + data_bytes_;
    Result<Store> store = models::open_to_replace(
        context_, path, {.size_bytes = all_bytes, .reserve_from = options_.durable ? 0 : all_bytes});
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
    if (is_copied_here(store)) return copy_here(store);
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
    // A long one is written back while the rest is copied, if that is to be waited for.
    Result<Ticket> submitted = context_.submit(Direction::write, ranges, {.durable = options_.durable && is_long()});
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

  bool is_long() const { return data_bytes_ > copied_here_bytes_max; }

  bool is_copied_here(const Store& store) const {
    const auto is_of_host = [](const TensorToSave& tensor) { return tensor.memory.domain.host_accessible(); };
    if (options_.checksums || is_long() || !std::ranges::all_of(tensors_, is_of_host)) return false;
    const Result<Plan> plan = context_.plan(store, Direction::write);
    return plan && !plan->routes.empty() && plan->routes.front().route == Route::buffered;
  }

  Result<Report> copy_here(const Store& store) {
    Result<Buffer> gathered = context_.allocate(Domain::host(), std::min(header_.size() + data_bytes_, gathered_bytes));
    if (!gathered) return std::move(gathered).error();
    Copying copying(context_, store, std::move(*gathered));
    Status added = copying.add(Region::host(header_.data(), header_.size()));
    std::uint64_t done_bytes = 0;
    for (std::size_t i = 0; added && i < order_.size(); ++i) {
      const Region& memory = tensors_[order_[i]].memory;
      added = copying.add(memory);
      done_bytes += memory.size_bytes;
      if (added) added = tell(done_bytes);
    }
    if (added) added = copying.write_gathered();
    if (!added) return std::move(added).error();
    if (options_.progress && !ask(data_bytes_)) return cancelled();
    return copying.report();
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
    return options_.progress ? tell(std::min(ticket.bytes_done(), data_bytes_)) : Status();
  }
  Status tell(std::uint64_t done_bytes) {
    if (!options_.progress) return {};
    const TimePoint now = Clock::now();
    if (now - told_ < progress_interval) return {};
    told_ = now;
    return ask(done_bytes) ? Status() : cancelled();
  }

  // Whether to go on.
  bool ask(std::uint64_t done_bytes) const {
    return call_back("SaveOptions::progress", options_.progress, done_bytes, data_bytes_);
  }

  static Error cancelled() { return {Code::cancelled, 0, "saving was cancelled", "the old file is still there"}; }

  const Context context_;
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

Result<Report> save_packed(const Context& context, const std::string& path, std::span<const TensorToSave> tensors,
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

Result<Report> save_safetensors(const Context& context, const std::string& path, std::span<const TensorToSave> tensors,
                                const SaveOptions& options) {
  if (options.packed) return or_out_of_memory([&] { return save_packed(context, path, tensors, options); });
  return or_out_of_memory([&] { return Saving(context, tensors, options).save(path); });
}

}  // namespace penstock
