// penstock load --to -: bytes of stores to standard output, in order.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "copying.h"
#include "interrupt.h"
#include "load.h"
#include "penstock/window_ring.h"

namespace penstock::cli {

namespace {

using SteadyClock = std::chrono::steady_clock;

Error no_reader(int error) {
  return {.code = code_from_errno(error),
          .system_error = error,
          .message = std::string("write to standard output: ") + std::strerror(error),
          .hint = error == EPIPE ? "the program that reads it has ended" : ""};
}

// A pipe that does not wait, though whoever shares it may; other outputs as they are.
int own_output(int output) {
  struct stat status {};
  if (::fstat(output, &status) != 0 || !S_ISFIFO(status.st_mode)) return output;
  const std::string path = "/proc/self/fd/" + std::to_string(output);
  const int opened = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  return opened >= 0 ? opened : output;
}

Error changed_meanwhile(const std::string& name) {
  return {.code = Code::changed,
          .message = name + " was changed while it was read: the output may hold parts of both",
          .hint = "do it again when nobody writes to it"};
}

class StreamCargo final : public Cargo {
 public:
  StreamCargo(TunedContext tuned, double deadline_seconds, int output)
      : tuned_(std::move(tuned)), deadline_seconds_(deadline_seconds), output_(own_output(output)) {}

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

  Context& context() override { return tuned_.context; }
  std::uint64_t bytes() const override { return bytes_; }

  Report load(const std::function<void(std::uint64_t)>& on_progress) override {
    const auto begun = SteadyClock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(SteadyClock::now() - begun).count(); };
    Report total{.outcome = Outcome::done};
    const Status status = move_all(total, seconds, on_progress);
    total.seconds = seconds();
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

  Status move_all(Report& total, const std::function<double()>& seconds,
                  const std::function<void(std::uint64_t)>& on_progress) {
    Result<WindowRing> ring =
        WindowRing::create(context(), {.size_bytes = copy_window_bytes(context().machine()), .domain = Domain::host()});
    if (!ring.ok()) return ring.error();
    std::size_t part = 0;
    std::uint64_t position = 0;  // in that part
    std::vector<std::uint64_t> lengths(2);
    const auto begin = [&](const Window& window) -> Result<Ticket> {
      while (part < parts_.size() && position == parts_[part].slice.size_bytes) ++part, position = 0;
      if (part == parts_.size()) return Ticket();
      // What is left of the time may be none, which is not the same as no limit.
      const double left = deadline_seconds_ > 0 ? deadline_seconds_ - seconds() : 0;
      const Slice& slice = parts_[part].slice;
      const std::uint64_t length = std::min<std::uint64_t>(window.memory.size_bytes, slice.size_bytes - position);
      const Range range{&parts_[part].store, slice.offset + position, window.memory.part(0, length)};
      position += length;
      lengths[window.number] = length;
      return context().submit(Direction::read, {&range, 1},
                              {.deadline_seconds = deadline_seconds_ > 0 && left <= 0 ? -1 : left});
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
      const Status written = write_all({(*window)->memory.data, length}, seconds);
      if (!written.ok()) return written;
      on_progress(done += length);
    }
  }

  // A reader that has stopped reading is waited for until the deadline, or a signal.
  Status write_all(std::span<const std::byte> bytes, const std::function<double()>& seconds) const {
    constexpr std::size_t step_bytes = 1 << 20;
    constexpr int between_looks_ms = 100;
    while (!bytes.empty()) {
      if (interrupted()) return interrupted_error();
      if (deadline_seconds_ > 0 && seconds() > deadline_seconds_) {
        return Error{.code = Code::timed_out,
                     .message = "the reader of standard output has not taken all by the deadline",
                     .hint = "raise --deadline, or leave it out"};
      }
      const ssize_t written = ::write(output_, bytes.data(), std::min(bytes.size(), step_bytes));
      if (written < 0 && errno == EAGAIN) {
        pollfd ready{.fd = output_, .events = POLLOUT, .revents = 0};
        ::poll(&ready, 1, between_looks_ms);
      } else if (written < 0 && errno != EINTR) {
        return no_reader(errno);
      } else if (written > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(written));
      }
    }
    return {};
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
  const int output_;
  std::vector<Part> parts_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<Cargo>> prepare_stream(const LoadFlags& flags, int output) {
  Result<TunedContext> tuned = make_tuned_context(flags, flags.paths, Domain::host());
  if (!tuned.ok()) return tuned.error();
  auto cargo = std::make_unique<StreamCargo>(std::move(*tuned), flags.deadline_seconds, output);
  if (Status ready = cargo->prepare(flags); !ready.ok()) return ready.error();
  return std::unique_ptr<Cargo>(std::move(cargo));
}

}  // namespace penstock::cli
