// penstock load --to -: bytes of stores to standard output, in order.
#include <algorithm>

#include "copying.h"
#include "interrupt.h"
#include "load.h"
#include "penstock/window_ring.h"
#include "standard_output.h"

namespace penstock::cli {

namespace {

Error changed_meanwhile(const std::string& name) {
  return {.code = Code::changed,
          .message = name + " was changed while it was read: the output may hold parts of both",
          .hint = "read it again when nothing writes to it"};
}

class StreamCargo final : public Cargo {
 public:
  StreamCargo(TunedContext tuned, double deadline_seconds, StandardOutput output)
      : tuned_(std::move(tuned)), deadline_seconds_(deadline_seconds), output_(output) {}

  Status prepare(const LoadFlags& flags) {
    for (const std::string& path : flags.paths) {
      Result<Store> store = tuned_.context.open(path);
      if (!store.ok()) return store.error();
      const Result<Slice> slice = choose_slice(store->info(), flags);
      if (!slice.ok()) return slice.error();
      bytes_ += slice->size_bytes;
      parts_.push_back({path, std::move(*store), *slice});
    }
    return {};
  }

  const Context& context() override { return tuned_.context; }
  std::uint64_t bytes() const override { return bytes_; }

  Report load(const std::function<void(std::uint64_t)>& on_progress) override {
    const Stopwatch stopwatch;
    Report total{.outcome = Outcome::done};
    const Status status = move_all(total, Deadline(deadline_seconds_), on_progress);
    total.seconds = stopwatch.seconds();
    if (!status.ok() && total.ok()) {
      total.outcome = Outcome::failed;
      total.error = status.error();
    }
    return total;
  }

  std::vector<Loaded> loaded() const override { return {}; }
  void describe(Transfer& transfer) const override {
    transfer.head["model"] = Json();
    add_tuning(tuned_.tuning, transfer);
  }

 private:
  struct Part {
    std::string path;
    Store store;
    Slice slice;
  };

  Status move_all(Report& total, const Deadline& deadline, const std::function<void(std::uint64_t)>& on_progress) {
    Result<WindowRing> ring =
        WindowRing::create(context(), {.size_bytes = copy_window_bytes(), .domain = Domain::host()});
    if (!ring.ok()) return ring.error();
    std::size_t part = 0;
    std::uint64_t position = 0;  // in that part
    std::vector<std::uint64_t> lengths(2);
    const auto begin = [&](const Window& window) -> Result<Ticket> {
      while (part < parts_.size() && position == parts_[part].slice.size_bytes) ++part, position = 0;
      if (part == parts_.size()) return Ticket();
      const Slice& slice = parts_[part].slice;
      const std::uint64_t length = std::min<std::uint64_t>(window.memory.size_bytes, slice.size_bytes - position);
      const Range range{&parts_[part].store, slice.offset + position, window.memory.part(0, length)};
      position += length;
      lengths[window.number] = length;
      return context().submit(Direction::read, {&range, 1}, {.deadline_seconds = deadline.request_seconds()});
    };
    const auto await_and_add = [&](Ticket& ticket, const Window&) -> Status {
      const Report report = cli::await(ticket);
      total.add(report);
      return report.ok() ? Status() : Status(*report.error);
    };
    std::uint64_t done = 0;
    while (true) {
      Result<std::optional<Window>> window = ring->next(begin, await_and_add);
      if (!window.ok()) return window.error();
      if (!*window) return check_unchanged();
      const std::uint64_t length = lengths[(*window)->number];
      const Status written = output_.write({(*window)->memory.data, length}, deadline);
      if (!written.ok()) return written;
      on_progress(done += length);
    }
  }

  // Each window is a request of its own, which sees only what happens meanwhile.
  Status check_unchanged() {
    for (const Part& part : parts_) {
      if (part.store.info().kind != StoreKind::file) continue;
      const Result<Store> again = context().open(part.path);
      if (!again.ok()) return again.error();
      if (again->info().identity != part.store.info().identity) return changed_meanwhile(part.path);
    }
    return {};
  }

  TunedContext tuned_;
  const double deadline_seconds_;
  const StandardOutput output_;
  std::vector<Part> parts_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<Cargo>> prepare_stream(const LoadFlags& flags, const StandardOutput& output) {
  Result<TunedContext> tuned = make_tuned_context(flags, flags.paths, Domain::host());
  if (!tuned.ok()) return tuned.error();
  auto cargo = std::make_unique<StreamCargo>(std::move(*tuned), flags.deadline_seconds, output);
  if (Status ready = cargo->prepare(flags); !ready.ok()) return ready.error();
  return std::unique_ptr<Cargo>(std::move(cargo));
}

}  // namespace penstock::cli
