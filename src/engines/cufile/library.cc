#include "engines/cufile/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/bounded.h"
#include "base/log.h"
#include "cuda/quiet.h"
#include "engines/cufile/errors.h"

namespace penstock::cufile {
namespace {

bool has_bit(std::uint32_t flags, unsigned bit) {
  return (flags >> bit & 1) != 0;
}

// Never unloaded: cuFile has threads of its own.
void* load_file(std::string& reason) {
  // First where the loader looks, then where NVIDIA's packages put it; GPUDirect Storage once had a folder of its own.
  for (const char* name : {"libcufile.so.0", "libcufile.so", "/usr/local/cuda/lib64/libcufile.so.0",
                           "/usr/local/cuda/gds/lib64/libcufile.so.0", "/usr/local/cuda/gds/lib/libcufile.so.0"}) {
    if (void* file = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return file;
    const char* error = ::dlerror();
    if (reason.empty() && error != nullptr) reason = error;
  }
  return nullptr;
}

template <typename Function>
bool find_symbol(void* file, const char* name, cuda::Relaxed<Function>& function) {
  function = cuda::Relaxed<Function>(reinterpret_cast<Function*>(::dlsym(file, name)));
  return function != nullptr;
}

Error no_library(const std::string& reason) {
  return {Code::engine_unavailable, 0, "libcufile can't be loaded: " + reason,
          "install it from the CUDA toolkit (libcufile) or from PyPI (nvidia-cufile), and make it known to the loader "
          "(LD_LIBRARY_PATH)"};
}

std::mutex acquiring;
// A child that is forked while another thread is acquiring finds it free.
const int acquiring_is_free_in_children =
    ::pthread_atfork([] { acquiring.lock(); }, [] { acquiring.unlock(); }, [] { acquiring.unlock(); });
// Not in the function: a child that is forked while another thread comes there for the first time would wait for that
// thread to construct it.
std::weak_ptr<Library> acquired;

// The first function that the library lacks; null if it has all that is required.
const char* find_functions(void* file, Api& api) {
#define PENSTOCK_CUFILE_FIND(member, symbol, result, arguments) \
  if (!find_symbol(file, #symbol, api.member)) return #symbol;
  PENSTOCK_CUFILE_REQUIRED(PENSTOCK_CUFILE_FIND)
#undef PENSTOCK_CUFILE_FIND
#define PENSTOCK_CUFILE_FIND(member, symbol, result, arguments) find_symbol(file, #symbol, api.member);
  PENSTOCK_CUFILE_OPTIONAL(PENSTOCK_CUFILE_FIND)
#undef PENSTOCK_CUFILE_FIND
  if (api.driver_close == nullptr) find_symbol(file, "cuFileDriverClose", api.driver_close);
  return nullptr;
}

}  // namespace

std::optional<Route> route_from_state(const DriverState& state) {
  const auto& module = state.properties.kernel_module;
  const bool nvidia_fs = module.major + module.minor > 0 && (module.status_flags & ~(1U << cf_status_p2p)) != 0;
  const bool p2pdma =
      has_bit(state.properties.feature_flags, cf_feature_p2p) || has_bit(module.status_flags, cf_status_p2p);
  if (state.compat_forced) return Route::cufile_compat;
  if (!nvidia_fs && !p2pdma) return state.compat_allowed ? std::optional(Route::cufile_compat) : std::nullopt;
  if (state.compat_allowed) return Route::cufile_unknown;
  return p2pdma && (state.prefers_p2pdma || !nvidia_fs) ? Route::p2pdma : Route::gds;
}

Route route_from_counts(Route expected, const Counts& counts) {
  const bool direct = counts.p2pdma + counts.nvidia_fs > 0;
  if (counts.posix > 0) return direct ? Route::cufile_unknown : Route::cufile_compat;
  if (!direct) return expected;  // not counted yet
  if (counts.nvidia_fs == 0) return Route::p2pdma;
  if (counts.p2pdma == 0) return Route::gds;
  return expected == Route::cufile_compat ? Route::cufile_unknown : expected;
}

Result<std::shared_ptr<Library>> Library::acquire() {
  const std::lock_guard lock(acquiring);
  if (auto library = acquired.lock()) {
    if (Status status = library->check_process(); !status) return std::move(status).error();
    return library;
  }
  auto library = load();
  if (library) acquired = *library;
  return library;
}

Result<std::shared_ptr<Library>> Library::load() {
  std::string reason;
  void* const file = load_file(reason);
  if (file == nullptr) return no_library(reason);
  std::shared_ptr<Library> library(new Library);
  if (const char* missing = find_functions(file, library->api_)) {
    return no_library(std::string("it has no ") + missing);
  }
  Dl_info place{};
  if (::dladdr(reinterpret_cast<void*>(library->api_.driver_open.plain()), &place) != 0 && place.dli_fname != nullptr) {
    library->path_ = place.dli_fname;
  }
  if (library->api_.get_version != nullptr) library->api_.get_version(&library->version_);
  library->process_ = ::getpid();
  return library;
}

Library::~Library() {
  const bool opened = opening_ && opening_->ok() && !foreign_;
  if (!opened || ::getpid() != process_ || api_.driver_close == nullptr) return;
  // Whoever opened it after us goes on with it.
  if (api_.use_count != nullptr && api_.use_count() != 1) return;
  static_cast<void>(comes_back(patience_seconds_, [close = api_.driver_close] { close(); }));
}

Status Library::check_process() const {
  if (::getpid() == process_) return {};
  return Error{Code::closed, 0, "cuFile was loaded by the parent of this process, and does not work after a fork",
               "start a new process (exec, or Python's spawn) instead"};
}

Error Library::hangs() const {
  return {Code::engine_unavailable, 0,
          std::string(hangs_in_) + " did not come back within " + std::to_string(std::lround(patience_seconds_)) + " s",
          "cuFile is not used until it does; the kernel log and cuFile's log (CUFILE_LOGFILE_PATH) may say why"};
}

// Nothing if the call goes on without us.
std::optional<CfError> Library::wait_for(const char* function, double seconds, Call call,
                                         std::function<void()> undo) const {
  struct Shared {
    CfError error{};
    std::atomic<bool> one_is_done = false;  // of the two, the call and waiting for it
  };
  const auto shared = std::make_shared<Shared>();
  auto run = [self = shared_from_this(), shared, call = std::move(call), undo = std::move(undo)]() mutable {
    shared->error = call();
    if (shared->one_is_done.exchange(true)) {
      if (undo && shared->error.number == cf_success) undo();
      --self->hanging_;
    }
    // Before the caller goes on, so that what it lets go of is gone then.
    call = nullptr;
    undo = nullptr;
    self.reset();
  };
  if (comes_back(seconds, std::move(run)) || shared->one_is_done.exchange(true)) return shared->error;
  const bool is_first = !is_stuck();
  if (is_first) hangs_in_ = function;  // before anybody is told
  ++hanging_;
  if (is_first) log(LogLevel::warning, hangs().message + ": cuFile is not used until it does");
  return std::nullopt;
}

Result<CfError> Library::set_up(const char* function, Call call, std::function<void()> undo) const {
  if (Status status = check_process(); !status) return std::move(status).error();
  if (is_stuck()) return hangs();
  const auto error = wait_for(function, patience_seconds_, std::move(call), std::move(undo));
  return error ? Result<CfError>(*error) : hangs();
}

Status Library::take_down(const char* function, std::function<void()> call) const {
  if (Status status = check_process(); !status) return status;
  auto run = [call = std::move(call)] {
    call();
    return CfError{};
  };
  const auto ended = wait_for(function, is_stuck() ? 0 : patience_seconds_.load(), std::move(run), nullptr);
  return ended ? Status() : Status(hangs());
}

Status Library::open(const Wishes& wishes) {
  if (Status status = check_process(); !status) return status;
  std::unique_lock lock(mutex_);
  if (opening_stage_ == Opening::not_begun) {
    opening_stage_ = Opening::begun;
    lock.unlock();
    const bool ran = cuda::Quiet::of_process().run([&] {
      static_cast<void>(set_up("cuFileDriverOpen", [this, wishes] {
        Status status = try_open(wishes);
        const std::lock_guard ending(mutex_);
        opening_ = std::move(status);
        return CfError{};
      }));
    });
    lock.lock();
    opening_stage_ = ran ? Opening::waited_for : Opening::not_begun;
    waited_for_opening_.notify_all();
  }
  waited_for_opening_.wait(lock, [this] { return opening_stage_ != Opening::begun; });
  if (opening_stage_ == Opening::not_begun) return cuda::streams_wait_error("open cuFile's driver");
  return opening_ ? *opening_ : Status(hangs());
}

Status Library::try_open(const Wishes& wishes) {
  foreign_ = api_.use_count != nullptr && api_.use_count() > 0;
  if (!foreign_) set_wishes(wishes);
  const CfError error = api_.driver_open();
  if (error.number == cf_driver_already_open) {
    foreign_ = true;
  } else if (error.number != cf_success) {
    kept_ = shared_from_this();
    return make_error(error, "open cuFile's driver");
  }
  if (Status status = read_state(); !status) return status;
  start_statistics();
  return {};
}

void Library::set_wishes(const Wishes& wishes) {
  if (api_.set_parameter_bool == nullptr) return;  // then read_state tells what is so
  if (api_.set_parameter_bool(cf_parameter_allow_compat, wishes.compat).number == cf_driver_already_open) {
    foreign_ = true;
    return;
  }
  if (wishes.p2pdma) api_.set_parameter_bool(cf_parameter_use_p2pdma, true);
}

Status Library::read_state() {
  // Newer releases may write more than is known here.
  struct {
    CfProperties known{};
    std::array<std::byte, 256> more{};
  } properties;
  const CfError error = api_.driver_get_properties(&properties.known);
  if (error.number != cf_success) return make_error(error, "ask cuFile's driver for its properties");
  state_.properties = properties.known;
  const std::uint32_t control = properties.known.kernel_module.control_flags;
  state_.compat_allowed = has_bit(control, cf_control_allow_compat) || has_bit(control, cf_control_posix) ||
                          has_bit(control, cf_control_fallback);
  if (api_.get_parameter_bool == nullptr) return {};
  const auto is_set = [this](int parameter) {
    bool value = false;
    return api_.get_parameter_bool(parameter, &value).number == cf_success && value;
  };
  state_.compat_allowed = state_.compat_allowed || is_set(cf_parameter_allow_compat);
  state_.compat_forced = is_set(cf_parameter_force_compat);
  state_.prefers_p2pdma = is_set(cf_parameter_use_p2pdma);
  return {};
}

void Library::start_statistics() {
  if (cf_gpu_count_offset(version_) == 0 || api_.get_statistics == nullptr) return;
  int level = 0;
  if (api_.get_statistics_level != nullptr) api_.get_statistics_level(&level);
  if (level < cf_statistics_level) {
    if (api_.set_statistics_level == nullptr || api_.statistics_start == nullptr) return;
    if (api_.set_statistics_level(cf_statistics_level).number != cf_success) return;
    if (api_.statistics_start().number != cf_success) return;
  }
  std::array<std::byte, cf_max_statistics_bytes> statistics{};
  counting_ = api_.get_statistics(statistics.data()).number == cf_success;
  if (counting_) baseline_ = read_counts();
}

Counts Library::read_counts() const {
  std::array<std::byte, cf_max_statistics_bytes> statistics{};
  if (api_.get_statistics(statistics.data()).number != cf_success) return baseline_;
  const std::byte* const at = statistics.data() + cf_gpu_count_offset(version_);
  std::uint32_t gpus = 0;
  std::memcpy(&gpus, at, sizeof gpus);
  Counts counts;
  for (std::size_t i = 0; i < gpus && i < cf_max_gpus; ++i) {
    CfGpuCounters gpu{};
    std::memcpy(&gpu, at + 8 + i * sizeof gpu, sizeof gpu);
    counts.p2pdma += gpu.p2p_reads + gpu.p2p_writes;
    counts.nvidia_fs += gpu.nvidia_fs_reads + gpu.nvidia_fs_writes;
    counts.posix += gpu.posix_reads + gpu.posix_writes;
  }
  return counts;
}

std::optional<Counts> Library::counts() const {
  if (!counting_) return std::nullopt;
  const Counts now = read_counts();
  return Counts{now.p2pdma - baseline_.p2pdma, now.nvidia_fs - baseline_.nvidia_fs, now.posix - baseline_.posix};
}

Route Library::judge(Route expected) const {
  if (expected == Route::cufile_compat) return expected;  // there is nothing less to find out
  const auto counted = counts();
  return counted ? route_from_counts(expected, *counted) : expected;
}

Result<CfHandle> Library::register_file(int fd, const std::string& name,
                                        const std::shared_ptr<const void>& owner) const {
  const auto handle = std::make_shared<CfHandle>(nullptr);  // shared with a call that may outlive us
  const auto error = set_up(
      "cuFileHandleRegister",
      [handle, fd, owner, add = api_.handle_register] {
        CfDescription description{};
        description.type = cf_handle_opaque_fd;
        description.handle.fd = fd;
        return add(handle.get(), &description);
      },
      [handle, owner, remove = api_.handle_deregister] { remove(*handle); });
  if (!error) return error.error();
  if (error->number != cf_success) return make_error(*error, "register " + name + " with cuFile");
  return *handle;
}

}  // namespace penstock::cufile
