// penstock load, of a stream: standard input, a pipe, a file of /proc. Nobody knows its size before its end.
#include <algorithm>

#include "copying.h"
#include "interrupt.h"
#include "load.h"
#include "source.h"

namespace penstock::cli {

namespace {

Error refuse_pipe(const std::string& path, std::string message) {
  return {.code = Code::invalid_argument,
          .message = std::move(message),
          .hint = "or copy it to a file first: penstock write " + path + " FILE"};
}

// What only a file can give: any part of it, and twice.
Status check_pipe_flags(const LoadFlags& flags) {
  const auto stream =
      std::ranges::find_if(flags.paths, [&](const std::string& path) { return names_stream(path, flags.size); });
  const std::string path = stream == flags.paths.end() ? "-" : *stream;
  const std::string name = path == "-" ? "standard input" : path;
  if (flags.paths.size() > 1) return refuse_pipe(path, name + " is a stream, which can only be loaded by itself");
  if (!flags.select.empty()) return refuse_pipe(path, "--select needs a model in files, and " + name + " is a stream");
  if (flags.verify || flags.repeat > 1) {
    return refuse_pipe(path, name + " can be read only once, so leave out --verify and --repeat");
  }
  if (flags.offset || flags.lba || flags.count) {
    return refuse_pipe(path, name + " can only be read from its beginning, so leave out --offset, --lba and --count");
  }
  return {};
}

class PipeCargo final : public Cargo {
 public:
  PipeCargo(TunedContext tuned, std::unique_ptr<Source> source, const LoadFlags& flags)
      : tuned_(std::move(tuned)), source_(std::move(source)), path_(flags.paths.front()) {}

  Status prepare(Domain domain, const std::optional<StandardOutput>& output, Deadline deadline) {
    domain_ = domain;
    output_ = output;
    deadline_ = deadline;
    const bool keeps_all = !output && source_->size_bytes();
    if (keeps_all) {
      if (Status room = check_room(domain, *source_->size_bytes(), hint); !room.ok()) return room;
    }
    if (output || !domain.host_accessible()) {
      if (Status ready = context().prepare(domain); !domain.host_accessible() && !ready.ok()) return ready;
      Result<Buffer> window = context().allocate(Domain::host(), step_bytes);
      if (!window.ok()) return window.error();
      window_ = std::move(*window);
    }
    return {};
  }

  const Context& context() override { return tuned_.context; }
  std::uint64_t bytes() const override { return source_->size_bytes().value_or(report_.bytes); }

  Report load(const std::function<void(std::uint64_t)>& on_progress) override {
    const Stopwatch stopwatch;
    report_ = {.outcome = Outcome::done, .reason = "a stream gives its bytes in order: one thread reads it"};
    for (bool more = true; more;) {
      const Result<std::uint64_t> moved = output_ ? pass_on() : keep();
      if (!moved.ok()) {
        report_.outcome = Outcome::failed;
        report_.error = moved.error();
        report_.error->message += "; " + std::to_string(source_->position()) + " bytes had arrived";
        break;
      }
      more = *moved != 0;
      report_.bytes += *moved;
      const Route route = domain_.host_accessible() ? Route::buffered : Route::buffered_staged;
      report_.routes[static_cast<std::size_t>(route)] += *moved;
      on_progress(report_.bytes);
    }
    report_.seconds = stopwatch.seconds();
    return report_;
  }

  std::vector<Loaded> loaded() const override {
    std::vector<Loaded> pieces;
    std::uint64_t left = output_ ? 0 : report_.bytes;
    for (const Buffer& buffer : buffers_) {
      const std::uint64_t used = std::min<std::uint64_t>(left, buffer.size_bytes());
      pieces.push_back({.tensor = {}, .path = path_, .is_file = false, .memory = buffer.region().part(0, used)});
      left -= used;
    }
    return pieces;
  }

  void describe(Transfer& transfer) const override {
    transfer.head["model"] = Json();
    add_tuning(tuned_.tuning, transfer);
  }

 private:
  static constexpr std::uint64_t step_bytes = 1 << 20;  // a reader further down the pipe should not wait for more
  static constexpr const char* hint = "load less of it, with --size";

  Result<std::uint64_t> pass_on() {
    const Result<std::uint64_t> filled = fill(window_.region());
    if (!filled.ok()) return filled;
    if (Status written = output_->write({window_.region().data, *filled}, deadline_); !written.ok()) {
      return written.error();
    }
    return filled;
  }

  // Into the memory behind what came before.
  Result<std::uint64_t> keep() {
    if (room_.size_bytes == 0) {
      if (Status grown = grow(); !grown.ok()) return grown.error();
    }
    const Region place = room_.part(0, std::min<std::uint64_t>(room_.size_bytes, step_bytes));
    const bool staged = !domain_.host_accessible();
    const Result<std::uint64_t> filled = fill(staged ? window_.region().part(0, place.size_bytes) : place);
    if (!filled.ok()) return filled;
    if (staged && *filled != 0) {
      Status copied = copy(place.part(0, *filled), window_.region().part(0, *filled));
      if (!copied.ok()) return copied.error();
    }
    room_ = room_.part(*filled, room_.size_bytes - *filled);
    return filled;
  }

  Result<std::uint64_t> fill(Region memory) {
    const Stopwatch reading;
    Result<std::uint64_t> filled = source_->fill(memory);
    report_.storage_seconds += reading.seconds();
    return filled;
  }

  Status grow() {
    const std::uint64_t most = copy_window_bytes();
    const std::uint64_t left = source_->size_bytes().value_or(UINT64_MAX) - report_.bytes;
    const std::uint64_t more = std::clamp<std::uint64_t>(left, 1, most);
    // The host's free memory is less what came before, the GPU's is all that it has.
    const std::uint64_t needed = domain_.host_accessible() ? more : report_.bytes + more;
    if (Status room = check_room(domain_, needed, hint); !room.ok()) return room;
    Result<Buffer> buffer = context().allocate(domain_, more);
    if (!buffer.ok()) return with_budget_option(buffer.error(), context(), domain_, report_.bytes + more);
    room_ = buffer->region();
    buffers_.push_back(std::move(*buffer));
    return {};
  }

  TunedContext tuned_;
  std::unique_ptr<Source> source_;
  const std::string path_;
  Domain domain_{};
  std::optional<StandardOutput> output_;
  Deadline deadline_;
  Buffer window_;                // of the host, for bytes on their way to elsewhere
  std::vector<Buffer> buffers_;  // that hold what came
  Region room_;                  // of the last of them, not filled yet
  Report report_;
};

}  // namespace

Result<std::unique_ptr<Cargo>> prepare_pipe(const LoadFlags& flags, const std::optional<StandardOutput>& output) {
  if (Status usable = check_pipe_flags(flags); !usable.ok()) return usable.error();
  const Result<Domain> domain = Domain::parse(flags.domain);
  if (!domain.ok()) return domain.error();
  Result<TunedContext> tuned = make_tuned_context(flags, flags.paths, *domain);
  if (!tuned.ok()) return tuned.error();
  const Deadline deadline(flags.deadline_seconds);
  Result<std::unique_ptr<Source>> source = open_stream(flags.paths.front(), flags.size, deadline);
  if (!source.ok()) return source.error();
  if (!*source) return refuse_pipe(flags.paths.front(), flags.paths.front() + " is no longer a stream");
  auto cargo = std::make_unique<PipeCargo>(std::move(*tuned), std::move(*source), flags);
  if (Status ready = cargo->prepare(*domain, output, deadline); !ready.ok()) return ready.error();
  return std::unique_ptr<Cargo>(std::move(cargo));
}

}  // namespace penstock::cli
