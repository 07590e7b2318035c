#include "engines/posix/engine.h"

#include "engines/posix/queue.h"
#include "files/file_store.h"
#include "files/inline_queue.h"
#include "files/may_wait.h"
#include "files/shared_read_team.h"
#include "files/transfer.h"

namespace penstock::posix {
namespace {

class Engine : public engine::Engine {
 public:
  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {.available = true}; }

  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    return made(files::open_file(name, options));
  }
  std::optional<Result<std::unique_ptr<engine::Store>>> open_now(const std::string& name,
                                                                 const OpenOptions& options) override {
    auto file = files::open_file_now(name, options);
    if (!file) return std::nullopt;
    return made(std::move(*file));
  }

  engine::Done run_here(const engine::Op& op) override { return files::transfer(op); }

  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    if (options.depth == 0) return Error{Code::invalid_argument, 0, "a queue of depth 0", "ask for at least 1"};
    if (options.run_inline) {
      return std::unique_ptr<engine::Queue>(
          std::make_unique<files::InlineQueue>(options.depth, team_.get(options.sharers)));
    }
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(options));
  }

 private:
  static Result<std::unique_ptr<engine::Store>> made(Result<files::OpenedFile>&& file) {
    if (!file) return std::move(file).error();
    return std::unique_ptr<engine::Store>(std::make_unique<files::FileStore>(std::move(*file)));
  }

  const engine::Description description_{
      .name = "posix",
      .summary = "files and block devices by positional reads and writes on threads",
      .schemes = {"file"},
      .sleeps_in_kernel = false,
      .inline_queue = true,
      .shares_reads = true,
      .may_wait = files::may_wait,
  };
  files::SharedReadTeam team_;
};

}  // namespace

std::unique_ptr<engine::Engine> make_engine() {
  return std::make_unique<Engine>();
}

}  // namespace penstock::posix
