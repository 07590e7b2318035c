#include "engines/uring/engine.h"

#include <memory>

#include "engines/uring/queue.h"
#include "engines/uring/refusal.h"
#include "engines/uring/store.h"
#include "files/inline_queue.h"
#include "files/may_wait.h"
#include "files/shared_read_team.h"
#include "files/transfer.h"

namespace penstock::uring {
namespace {

class Engine : public engine::Engine {
 public:
  explicit Engine(const Settings& settings) : settings_(settings) {}

  const engine::Description& description() const override { return description_; }

  engine::Probe probe() const override {
    io_uring ring{};
    constexpr std::uint32_t probe_entries = 2;
    const int error = settings_.simulated_refusal != 0 ? settings_.simulated_refusal : open_ring(ring, probe_entries);
    if (error != 0) return explain_refusal(error, io_uring_disabled());
    const int use_error = try_ring(ring);
    io_uring_queue_exit(&ring);
    return use_error == 0 ? engine::Probe{.available = true} : explain_refused_use(use_error);
  }

  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    return made(files::open_file(name, options));
  }
  std::optional<Result<std::unique_ptr<engine::Store>>> open_now(const std::string& name,
                                                                 const OpenOptions& options) override {
    auto file = files::open_file_now(name, options);
    if (!file) return std::nullopt;
    return made(std::move(*file));
  }

  engine::Memory* memory() override { return &registry_; }

  engine::Done run_here(const engine::Op& op) override { return files::transfer(op); }

  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    if (options.depth == 0) return Error{Code::invalid_argument, 0, "a queue of depth 0", "ask for at least 1"};
    if (options.run_inline) {
      return std::unique_ptr<engine::Queue>(
          std::make_unique<files::InlineQueue>(options.depth, team_.get(options.sharers)));
    }
    if (settings_.simulated_refusal != 0) {
      const engine::Probe refusal = probe();
      return Error{Code::engine_unavailable, settings_.simulated_refusal, refusal.reason, refusal.remedy};
    }
    return Queue::create(options, registry_);
  }

 private:
  Result<std::unique_ptr<engine::Store>> made(Result<files::OpenedFile>&& file) {
    if (!file) return std::move(file).error();
    return std::unique_ptr<engine::Store>(std::make_unique<Store>(std::move(*file), registry_));
  }

  const Settings settings_;
  const engine::Description description_{
      .name = "uring",
      .summary = "files and block devices through io_uring, with registered files and buffers",
      .schemes = {"file"},
      .sleeps_in_kernel = true,
      .inline_queue = true,
      .shares_reads = true,
      .may_wait = files::may_wait,
  };
  Registry registry_;
  files::SharedReadTeam team_;
};

}  // namespace

std::unique_ptr<engine::Engine> make_engine(const Settings& settings) {
  return std::make_unique<Engine>(settings);
}

}  // namespace penstock::uring
