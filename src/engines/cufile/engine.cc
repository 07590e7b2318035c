#include "engines/cufile/engine.h"

#include <sys/stat.h>

#include <atomic>

#include "base/log.h"
#include "cuda/driver.h"
#include "engines/cufile/buffers.h"
#include "engines/cufile/diagnosis.h"
#include "engines/cufile/errors.h"
#include "engines/cufile/queue.h"
#include "engines/cufile/store.h"
#include "files/block_device.h"
#include "files/may_wait.h"

namespace penstock::cufile {
namespace {

bool can_batch(const Library& library) {
  return library.api().has_batches() && (library.state().properties.feature_flags >> cf_feature_batch & 1) != 0;
}

// Once in the process, since staging serves from then on: a person who set GPUDirect Storage up should know.
void warn_of_staging(const Error& error) {
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  log(LogLevel::warning, "GPUDirect Storage is not used, bytes for GPUs are staged through host memory: " +
                             error.message + (error.hint.empty() ? "" : " (" + error.hint + ")"));
}

// Once in the process, where there is a GPU and what GPUDirect Storage needs was never installed.
void note_what_is_missing(const engine::Probe& probe) {
  static std::atomic_flag noted;
  if (noted.test_and_set()) return;
  log(LogLevel::info, "there is no GPUDirect Storage, bytes for GPUs are staged through host memory: " + probe.reason +
                          (probe.remedy.empty() ? "" : " (" + probe.remedy + ")"));
}

class Engine : public engine::Engine {
 public:
  explicit Engine(const Settings& settings) : settings_(settings) {}

  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override;
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override;

  engine::Memory* memory() override { return &buffers_; }

  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    if (options.depth == 0) return Error{Code::invalid_argument, 0, "a queue of depth 0", "ask for at least 1"};
    auto library = acquire();
    if (!library) return std::move(library).error();
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(options, Lending{**library, batches_}));
  }

  std::optional<engine::Meaning> meaning_of(std::int32_t number) const override {
    if (number <= cf_error_base || number >= cf_error_end) return std::nullopt;
    return engine::Meaning{describe(number), std::string(error_hint(number))};
  }

 private:
  // Held from the first use on: queues and registrations stand on it.
  Result<std::shared_ptr<Library>> acquire() {
    const std::lock_guard lock(mutex_);
    if (library_ == nullptr) {
      auto library = Library::acquire();
      if (!library) return library;
      library_ = std::move(*library);
    }
    return library_;
  }
  Result<std::shared_ptr<Library>> open_driver();
  Route hoped_for();
  Error explain(Error error, const files::OpenedFile& file) const;

  const Settings settings_;
  const engine::Description description_{
      .name = "cufile",
      .summary = "between files and GPU memory by NVIDIA's cuFile (GPUDirect Storage)",
      .schemes = {"file"},
      .host = engine::HostReach::none,
      .reaches_device = true,
      .may_wait = files::may_wait,
  };
  std::mutex mutex_;
  std::shared_ptr<Library> library_;  // shared: there is one in the process
  std::optional<Route> hoped_for_;
  Buffers buffers_;
  BatchSwitch batches_;
};

engine::Probe Engine::probe() const {
  const auto library = Library::acquire();
  engine::Probe probe;
  if (!library) {
    probe.reason = library.error().message;
    probe.remedy = library.error().hint;
    probe.conditions.push_back({"libcufile", Condition::State::missing, probe.reason, probe.remedy});
  } else {
    const int version = (*library)->version();
    const std::string number = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    probe.conditions.push_back(
        {"libcufile", Condition::State::met, (version > 0 ? number + ", " : "") + (*library)->path(), {}});
  }
  const Facts facts = gather_facts(settings_.root);
  Diagnosis diagnosis = diagnose(facts);
  probe.conditions.insert(probe.conditions.end(), diagnosis.conditions.begin(), diagnosis.conditions.end());
  if (library) {
    probe.available = true;
    probe.device_route = diagnosis.route;
    probe.reason = std::move(diagnosis.reason);
    probe.remedy = std::move(diagnosis.remedy);
  }
  if (!facts.gpus.empty() && !probe.reason.empty()) note_what_is_missing(probe);
  return probe;
}

// Compatibility mode is allowed where there is nothing better to hope for, and whoever goes on there has asked for it.
// Elsewhere cuFile shall refuse rather than fall back.
Result<std::shared_ptr<Library>> Engine::open_driver() {
  auto library = acquire();
  if (!library) return library;
  if (const auto driver = cuda::Driver::get(); !driver) return driver.error();
  const Route hope = hoped_for();
  Status opened = (*library)->open({.compat = hope == Route::cufile_compat, .p2pdma = hope == Route::p2pdma});
  if (!opened) {
    // A driver that hangs was told of, and one that must wait for streams is opened later.
    if (!(*library)->is_stuck() && opened.error().code == Code::engine_unavailable) warn_of_staging(opened.error());
    return std::move(opened).error();
  }
  if (!can_batch(**library)) batches_.on = false;
  buffers_.use(**library);
  return library;
}

Route Engine::hoped_for() {
  const std::lock_guard lock(mutex_);
  if (!hoped_for_) hoped_for_ = diagnose(gather_facts(settings_.root)).route;
  return *hoped_for_;
}

// cuFile's number says little: what is known of the file's disk says more.
Error Engine::explain(Error error, const files::OpenedFile& file) const {
  struct stat status = {};
  if (::fstat(file.direct.get(), &status) != 0) return error;
  const dev_t device = S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
  const auto volume = find_volume(gather_facts(settings_.root), files::device_number(device));
  if (!volume) return error;
  for (const Condition& condition : diagnose_volume(*volume)) {
    if (condition.state != Condition::State::missing) continue;
    error.message += "; " + condition.name + ": " + condition.detail;
    error.hint = condition.remedy;
    // The cure of this number is known; others have several.
    if (error.system_error != cf_handle_not_registered || condition.name == udev_condition_name) break;
  }
  return error;
}

Result<std::unique_ptr<engine::Store>> Engine::open(const std::string& name, const OpenOptions& options) {
  auto library = open_driver();
  if (!library) return std::move(library).error();
  const auto route = route_from_state((*library)->state());
  if (!route) {
    return Error{Code::unsupported, 0, "cuFile's driver can't reach GPU memory on this machine",
                 "`penstock engines` lists what is missing; let Penstock choose the engine, and it stages instead"};
  }
  auto opened = files::open_file(name, options);
  if (!opened) return std::move(opened).error();
  const auto file = std::make_shared<files::OpenedFile>(std::move(*opened));  // shared with a call that may hang
  if (file->info.direct && !file->direct) {
    file->direct = files::open_direct(file->buffered.get(), file->path, file->info.writable);
  }
  if (!file->direct) {
    return Error{Code::unsupported, 0,
                 "cuFile can't reach " + name + ": " + file->info.file_system + " has no O_DIRECT",
                 "let Penstock choose the engine: it stages through pinned memory"};
  }
  auto handle = (*library)->register_file(file->direct.get(), name, file);
  if (!handle) {
    Error error = explain(std::move(handle).error(), *file);
    if (!(*library)->is_stuck()) warn_of_staging(error);
    return error;
  }
  return std::unique_ptr<engine::Store>(std::make_unique<Store>(std::move(*file), *library, *handle, *route));
}

}  // namespace

std::unique_ptr<engine::Engine> make_engine(const Settings& settings) {
  return std::make_unique<Engine>(settings);
}

}  // namespace penstock::cufile
