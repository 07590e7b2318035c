#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "penstock/gpu.h"
#include "services/models/contents.h"
#include "services/models/ending.h"
#include "services/models/open_store.h"
#include "services/models/parts.h"
#include "services/models/row_reader.h"

namespace penstock {

using models::FilePiece;
using models::in_quotes;
using models::Layout;
using models::RowJob;
using models::RowReader;

namespace {

using Clock = std::chrono::steady_clock;

// More ranges than this in a request cost more memory than reading rows as a whole.
constexpr std::uint64_t pieces_most = 1 << 22;

double seconds_since(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
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
  Clock::time_point begun = Clock::now();
  double begin_seconds = 0;  // until the request was submitted
  std::uint64_t wanted_bytes = 0;
  std::vector<Store> stores;        // by file; empty where nothing is read
  Ticket ticket;                    // of all that is read where it belongs; null: nothing is
  std::unique_ptr<RowReader> rows;  // of the rest, if there is any; it has ended when both have

  ~Impl() {
    if (in_child()) (void)rows.release();  // its thread stayed with the parent, and can't be waited for
  }
  // Of a fork, after which nobody is there who would end it.
  bool is_left_behind() const { return rows && !rows->ended() && in_child(); }

 private:
  bool in_child() const { return ::getpid() != process_; }
  const pid_t process_ = ::getpid();
};

// Turns parts into one request, and what is better read as rows into a RowReader.
class LoadingBuilder {
 public:
  LoadingBuilder(Context& context, const Model& model, const LoadOptions& options)
      : context_(context), model_(model), options_(options) {
    impl_->stores.resize(model.files().size());
    cached_.resize(model.files().size());
  }

  Status add(const TensorPart& part) {
    if (part.tensor >= model_.tensors().size()) {
      return Error{
          Code::invalid_argument, 0,
          "part of tensor number " + std::to_string(part.tensor) + " of " + std::to_string(model_.tensors().size()),
          "tensors are counted from 0, as in Model::tensors()"};
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
                   "give memory of the size that part_bytes tells"};
    }
    if (bytes == 0) return {};
    impl_->wanted_bytes += bytes;
    if (Status status = open(tensor.file); !status) return status;
    if (part.intervals.empty()) {
      pieces_.push_back({tensor.file, tensor.offset, part.memory});
      return {};
    }
    return add_bytes(tensor, models::lay_out(tensor, part.dimension, part.intervals).value(), part.memory);
  }

  Result<Loading> start() {
    models::sort_and_merge(pieces_, &find_cuda_allocation);
    std::vector<Range> ranges;
    ranges.reserve(pieces_.size());
    for (const FilePiece& piece : pieces_) {
      ranges.push_back({&impl_->stores[piece.file], piece.offset, piece.memory});
    }
    RequestOptions request = options_.request;
    if (ranges.empty()) request.stream.reset();  // nothing will be there later than it is now
    // One deadline for all requests of the load, however many they are.
    if (request.deadline_seconds == 0) request.deadline_seconds = context_.options().deadlines.request_seconds;
    if (!jobs_.empty()) {
      if (Status status = prepare_rows(request); !status) return std::move(status).error();
      request.on_end = nullptr;
    }
    if (!ranges.empty() || !impl_->rows) {
      Result<Ticket> ticket = context_.submit(Direction::read, ranges, request);
      if (!ticket) return std::move(ticket).error();
      impl_->ticket = std::move(*ticket);
    }
    impl_->begin_seconds = seconds_since(impl_->begun);
    if (impl_->rows) {
      if (Status status = impl_->rows->start(impl_->ticket); !status) {
        models::end(impl_->ticket);
        return std::move(status).error();
      }
    }
    return Loading(std::move(impl_));
  }

 private:
  Status open(std::uint32_t file) {
    Store& store = impl_->stores[file];
    if (store) return {};
    Result<Store> opened = models::open_store(context_, model_.files()[file]);
    if (!opened) return std::move(opened).error();
    store = std::move(*opened);
    return {};
  }

  Status add_bytes(const TensorInfo& tensor, Layout layout, Region memory) {
    if (choose(tensor, layout) == Columns::whole) {
      if (options_.request.stream) {
        return Error{Code::invalid_argument, 0,
                     "tensor " + in_quotes(tensor.name) + ": stream order where rows are read as a whole",
                     "use Columns::pieces, or no stream"};
      }
      jobs_.push_back({&impl_->stores[tensor.file], tensor.offset, std::move(layout), memory});
      return {};
    }
    if (!fits(layout)) {
      return Error{
          Code::invalid_argument, 0,
          "tensor " + in_quotes(tensor.name) + ": more than " + std::to_string(pieces_most) + " pieces in one request",
          "use Columns::automatic, or load fewer tensors at once"};
    }
    models::append_pieces(tensor, layout, memory, pieces_);
    return {};
  }

  // Into one request, piece by piece.
  bool fits(const Layout& layout) const {
    return layout.piece_count() <= pieces_most - std::min<std::uint64_t>(pieces_most, pieces_.size());
  }

  Columns choose(const TensorInfo& tensor, const Layout& layout) {
    if (layout.rows == 1 || layout.bounds().length > models::row_bounds_most) return Columns::pieces;
    if (options_.columns != Columns::automatic) return options_.columns;
    if (options_.request.stream) return Columns::pieces;
    std::optional<bool>& cached = cached_[tensor.file];
    if (!cached) cached = reads_from_memory(context_, impl_->stores[tensor.file]);
    if (!fits(layout)) return Columns::whole;
    return models::choose_columns(models::column_facts(layout, *cached));
  }

  // Before anything is written to memory of the caller's.
  Status prepare_rows(const RequestOptions& request) {
    std::ranges::sort(jobs_, [](const RowJob& a, const RowJob& b) {
      return std::tie(a.store, a.offset) < std::tie(b.store, b.offset);
    });
    Result<std::unique_ptr<RowReader>> rows = RowReader::create(context_, std::move(jobs_), request);
    if (!rows) return std::move(rows).error();
    impl_->rows = std::move(*rows);
    return {};
  }

  Context& context_;
  const Model& model_;
  const LoadOptions& options_;
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
  return impl_->rows ? impl_->rows->ended() || impl_->is_left_behind() : impl_->ticket.ended();
}

std::uint64_t Loading::bytes_done() const {
  if (!impl_) return 0;
  return impl_->ticket.bytes_done() + (impl_->rows ? impl_->rows->bytes_done() : 0);
}

std::uint64_t Loading::bytes_wanted() const {
  return impl_ ? impl_->wanted_bytes : 0;
}

bool Loading::wait_for(std::chrono::nanoseconds time) const {
  if (!impl_ || impl_->is_left_behind()) return true;
  return impl_->rows ? impl_->rows->wait_for(time) : impl_->ticket.wait_for(time);
}

void Loading::wait() const {
  if (!impl_ || impl_->is_left_behind()) return;
  if (impl_->rows) {
    impl_->rows->wait();
  } else {
    impl_->ticket.wait();
  }
}

void Loading::cancel() {
  if (!impl_ || impl_->is_left_behind()) return;
  if (impl_->rows) impl_->rows->stop();
  models::end(impl_->ticket);
  if (impl_->rows) impl_->rows->wait();
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
  report.transfer = impl_->rows ? impl_->rows->report() : impl_->ticket.report();
  report.read_bytes = report.transfer.bytes + report.transfer.extra_bytes;
  report.seconds = impl_->begin_seconds + report.transfer.seconds;
  return report;
}

Result<Loading> load(Context& context, const Model& model, std::span<const TensorPart> parts,
                     const LoadOptions& options) {
  LoadingBuilder builder(context, model, options);
  for (const TensorPart& part : parts) {
    if (Status status = builder.add(part); !status) return std::move(status).error();
  }
  return builder.start();
}

}  // namespace penstock
