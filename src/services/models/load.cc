#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <tuple>

#include "base/clock.h"
#include "base/out_of_memory.h"
#include "penstock/gpu.h"
#include "services/models/background.h"
#include "services/models/contents.h"
#include "services/models/ending.h"
#include "services/models/file_stores.h"
#include "services/models/packed_indexes.h"
#include "services/models/parts.h"
#include "services/models/range_list.h"
#include "services/models/row_reader.h"
#include "services/models/wave_reader.h"

namespace penstock {

using models::Background;
using models::FilePiece;
using models::FileStores;
using models::in_quotes;
using models::Layout;
using models::PackedIndexes;
using models::RowJob;
using models::RowReader;

namespace {

// More ranges than this in a request cost more memory than reading rows as a whole.
constexpr std::uint64_t pieces_most = 1 << 22;

double seconds_since(TimePoint time) {
  return seconds_between(time, Clock::now());
}

bool reads_from_memory(const Context& context, const Store& store) {
  const StoreInfo& info = store.info();
  if (info.locality == Locality::memory) return true;
  if (context.options().cache == Cache::bypass || info.locality != Locality::local) return false;
  return store.cached_bytes(0, info.size_bytes).value_or(0) > info.size_bytes / 2;
}

}  // namespace

class Loading::Impl {
 public:
  TimePoint begun = Clock::now();
  double begin_seconds = 0;  // until the request was submitted
  std::uint64_t wanted_bytes = 0;
  Ticket ticket;                     // of all that one request reads where it belongs; null: nothing is
  std::unique_ptr<Background> rest;  // if there is any; it has ended when both have

  ~Impl() {
    if (in_child()) (void)rest.release();  // its thread stayed with the parent, and can't be waited for
  }
  // Of a fork, after which nobody is there who would end it.
  bool is_left_behind() const { return rest && !rest->ended() && in_child(); }

 private:
  bool in_child() const { return ::getpid() != process_; }
  const pid_t process_ = ::getpid();
};

// The files of parts, as far as they are right.
models::WantedFiles wanted_files(const Model& model, std::span<const TensorPart> parts) {
  models::WantedFiles wanted{.files = std::vector<bool>(model.files().size())};
  for (const TensorPart& part : parts) {
    if (part.tensor >= model.tensors().size() || part.memory.size_bytes == 0) continue;
    wanted.files[model.tensors()[part.tensor].file] = true;
    wanted.to_gpu = wanted.to_gpu || !part.memory.domain.host_accessible();
  }
  return wanted;
}

// Turns parts into one request. What is better read as rows, and what has more files than may be open at a time, is for
// the background.
class LoadingBuilder {
 public:
  LoadingBuilder(const Context& context, const Model& model, std::span<const TensorPart> parts,
                 const LoadOptions& options)
      : context_(context),
        model_(model),
        options_(options),
        stores_(std::make_shared<FileStores>(context, model, wanted_files(model, parts))) {
    cached_.resize(model.files().size());
  }

  // What was begun and is not handed over.
  ~LoadingBuilder() {
    if (impl_) models::end(impl_->ticket);
  }
  LoadingBuilder(const LoadingBuilder&) = delete;
  LoadingBuilder& operator=(const LoadingBuilder&) = delete;

  // Before parts are added: where the chunks of packed tensors lie.
  Status read_indexes(std::span<const TensorPart> parts) {
    std::vector<std::uint32_t> tensors;
    for (const TensorPart& part : parts) {
      if (part.tensor >= model_.tensors().size() || part.memory.size_bytes == 0) continue;
      if (!model_.tensors()[part.tensor].packing.empty()) tensors.push_back(part.tensor);
    }
    if (tensors.empty()) return {};
    std::ranges::sort(tensors);
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    return PackedIndexes::read(context_, model_, *stores_, tensors, options_.request);
  }

  Status add(const TensorPart& part) {
    if (part.tensor >= model_.tensors().size()) {
      return Error{
          Code::invalid_argument, 0,
          "part of tensor number " + std::to_string(part.tensor) + " of " + std::to_string(model_.tensors().size()),
          "tensors are counted from 0"};
    }
    const TensorInfo& tensor = model_.tensors()[part.tensor];
    std::uint64_t bytes = tensor.size_bytes;
    if (!part.intervals.empty()) {
      const Result<std::uint64_t> wanted = part_bytes(tensor, part.dimension, part.intervals);
      if (!wanted) return wanted.error();
      bytes = *wanted;
    }
    if (bytes != part.memory.size_bytes) {
      return Error{Code::invalid_argument, 0,
                   "tensor " + in_quotes(tensor.name) + ": memory of " + std::to_string(part.memory.size_bytes) +
                       " bytes for a part of " + std::to_string(bytes),
                   "give memory of the size of the part"};
    }
    if (bytes == 0) return {};
    impl_->wanted_bytes += bytes;
    if (stores_->fit()) {
      if (Result<Store> opened = stores_->open(tensor.file); !opened) return std::move(opened).error();
    }
    if (part.intervals.empty()) {
      pieces_.push_back(models::piece_of(PackedIndexes::place_of(model_, part.tensor), 0, part.memory));
      return {};
    }
    return add_bytes(part.tensor, models::lay_out(tensor, part.dimension, part.intervals).value(), part.memory);
  }

  Result<Loading> start() {
    models::sort_and_merge(pieces_, &find_cuda_allocation);
    RequestOptions request = options_.request;
    request.as_opened = true;
    if (pieces_.empty()) request.stream.reset();  // nothing will be there later than it is now
    // One deadline for all requests of the load, however many they are.
    if (request.deadline_seconds == 0) request.deadline_seconds = context_.options().deadlines.request_seconds;
    if (Status status = prepare_rest(request); !status) return std::move(status).error();
    if (impl_->rest) request.on_end = nullptr;
    if (!pieces_.empty() || !impl_->rest) {
      if (Status status = submit(request); !status) return std::move(status).error();
    }
    impl_->begin_seconds = seconds_since(impl_->begun);
    if (impl_->rest) {
      if (Status status = impl_->rest->start(impl_->ticket); !status) return std::move(status).error();
    }
    return Loading(std::move(impl_));
  }

 private:
  Status submit(const RequestOptions& request) {
    std::deque<Store> stores;  // their addresses stay; the request keeps them open
    models::RangeList list(context_);
    list.reserve(pieces_.size());
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const FilePiece& piece = pieces_[i];
      if (i == 0 || pieces_[i - 1].file != piece.file) stores.push_back(stores_->open(piece.file).value());
      list.add(stores.back(), piece);
    }
    Result<Ticket> ticket = context_.submit(Direction::read, list.ranges(), request);
    if (!ticket) return std::move(ticket).error();
    impl_->ticket = std::move(*ticket);
    return {};
  }

  Status add_bytes(std::uint32_t index, Layout layout, Region memory) {
    const TensorInfo& tensor = model_.tensors()[index];
    const Result<Columns> columns = choose(tensor, layout);
    if (!columns) return columns.error();
    if (*columns == Columns::whole) {
      if (options_.request.stream) {
        return Error{Code::invalid_argument, 0,
                     "tensor " + in_quotes(tensor.name) + ": stream order while rows are read as a whole",
                     "choose the columns \"pieces\", or leave the stream unset"};
      }
      jobs_.push_back({PackedIndexes::place_of(model_, index), std::move(layout), memory});
      return {};
    }
    if (!fits(layout)) {
      return Error{
          Code::invalid_argument, 0,
          "tensor " + in_quotes(tensor.name) + ": more than " + std::to_string(pieces_most) + " pieces in one request",
          "choose the columns \"auto\", or load fewer tensors at once"};
    }
    models::append_pieces(PackedIndexes::place_of(model_, index), layout, memory, pieces_);
    return {};
  }

  // Into one request, piece by piece.
  bool fits(const Layout& layout) const {
    return layout.piece_count() <= pieces_most - std::min<std::uint64_t>(pieces_most, pieces_.size());
  }

  Result<Columns> choose(const TensorInfo& tensor, const Layout& layout) {
    if (layout.rows == 1 || layout.bounds().length > models::row_bounds_most) return Columns::pieces;
    if (options_.columns != Columns::automatic) return options_.columns;
    if (options_.request.stream) return Columns::pieces;
    // Each piece would decode a whole chunk, which holds pieces of many rows.
    if (!tensor.packing.empty()) return Columns::whole;
    std::optional<bool>& cached = cached_[tensor.file];
    if (!cached) {
      const Result<Store> store = stores_->open(tensor.file);
      if (!store) return store.error();
      cached = reads_from_memory(context_, *store);
    }
    if (!fits(layout)) return Columns::whole;
    return models::choose_columns(models::column_facts(layout, *cached));
  }

  // Before anything is written to memory of the caller's.
  Status prepare_rest(const RequestOptions& request) {
    Background::Steps steps;
    if (!stores_->fit() && !pieces_.empty()) {
      if (request.stream) {
        return system_error(EMFILE, "open all files of a load in stream order",
                            "raise the limit (ulimit -n), load fewer files at once, or leave stream unset");
      }
      auto waves = models::WaveReader::create(context_, stores_, std::exchange(pieces_, {}));
      if (!waves) return std::move(waves).error();
      steps.push_back(std::move(*waves));
    }
    if (!jobs_.empty()) {
      std::ranges::sort(jobs_, [](const RowJob& a, const RowJob& b) {
        return std::tie(a.tensor.file, a.tensor.offset) < std::tie(b.tensor.file, b.tensor.offset);
      });
      Result<std::unique_ptr<RowReader>> rows = RowReader::create(context_, stores_, std::move(jobs_));
      if (!rows) return std::move(rows).error();
      steps.push_back(std::move(*rows));
    }
    if (!steps.empty()) impl_->rest = std::make_unique<Background>(context_, std::move(steps), request);
    return {};
  }

  const Context context_;
  const Model& model_;
  const LoadOptions& options_;
  const std::shared_ptr<FileStores> stores_;  // shared with the steps in the background
  std::unique_ptr<Loading::Impl> impl_ = std::make_unique<Loading::Impl>();
  std::vector<std::optional<bool>> cached_;  // by file; nothing: not asked yet
  std::vector<FilePiece> pieces_;
  std::vector<RowJob> jobs_;
};

Loading::Loading(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Loading::Loading(Loading&&) noexcept = default;

Loading& Loading::operator=(Loading&& other) noexcept {
  cancel();
  impl_ = std::move(other.impl_);
  return *this;
}

Loading::~Loading() {
  cancel();
}

bool Loading::ended() const {
  if (!impl_) return true;
  return impl_->rest ? impl_->rest->ended() || impl_->is_left_behind() : impl_->ticket.ended();
}

std::uint64_t Loading::bytes_done() const {
  if (!impl_) return 0;
  return impl_->ticket.bytes_done() + (impl_->rest ? impl_->rest->bytes_done() : 0);
}

std::uint64_t Loading::bytes_wanted() const {
  return impl_ ? impl_->wanted_bytes : 0;
}

bool Loading::wait_for(std::chrono::nanoseconds time) const {
  if (!impl_ || impl_->is_left_behind()) return true;
  return impl_->rest ? impl_->rest->wait_for(time) : impl_->ticket.wait_for(time);
}

void Loading::wait() const {
  if (!impl_ || impl_->is_left_behind()) return;
  if (impl_->rest) {
    impl_->rest->wait();
  } else {
    impl_->ticket.wait();
  }
}

void Loading::cancel() {
  if (!impl_ || impl_->is_left_behind()) return;
  if (impl_->rest) impl_->rest->stop();
  models::end(impl_->ticket);
  if (impl_->rest) impl_->rest->wait();
}

LoadReport Loading::report() const {
  if (!impl_) {
    LoadReport nothing;
    nothing.transfer.outcome = Outcome::failed;
    nothing.transfer.error =
        Error{Code::invalid_argument, 0, "this Loading was moved from", "use the one that it was moved to"};
    return nothing;
  }
  LoadReport report{.wanted_bytes = impl_->wanted_bytes};
  if (impl_->is_left_behind()) {
    report.transfer.outcome = Outcome::cancelled;
    report.transfer.error =
        Error{Code::closed, 0, "the load belongs to the parent of a fork", "load again in the child"};
    return report;
  }
  report.transfer = impl_->rest ? impl_->rest->report() : impl_->ticket.report();
  report.packed_bytes = report.transfer.made_bytes;
  report.stored_bytes = report.transfer.stored_bytes;
  report.read_bytes = report.transfer.bytes - report.packed_bytes + report.stored_bytes + report.transfer.extra_bytes;
  report.seconds = impl_->begin_seconds + report.transfer.seconds;
  return report;
}

Result<Loading> load(const Context& context, const Model& model, std::span<const TensorPart> parts,
                     const LoadOptions& options) {
  return or_out_of_memory([&]() -> Result<Loading> {
    LoadingBuilder builder(context, model, parts, options);
    if (Status status = builder.read_indexes(parts); !status) return std::move(status).error();
    for (const TensorPart& part : parts) {
      if (Status status = builder.add(part); !status) return std::move(status).error();
    }
    return builder.start();
  });
}

}  // namespace penstock
