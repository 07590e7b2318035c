// Library: libcufile in this process. cuFile's driver and its settings belong to the process, so there is one object
// for all engines, counted by those who hold it; the driver is opened at first need, never by looking.
//
// cuFile falls back to reading through host memory without a word. What it really does is told from three things, in
// this order: the statistics that newer releases keep, which count operations by their way; the settings, which may
// forbid the fallback (ours do, where the machine can do better, unless somebody else opened the driver before); and
// what the driver says the machine can do. Where they leave it open, the route is `cufile_unknown`.
//
// Calls that set up or take down (opening the driver, registering files and memory) are made on threads of their own
// and waited for only so long. Until one that took longer comes back, nothing is set up any more: whoever asks is told
// at once, and staging serves instead. Transfers are core's to abandon.
//
// Thread safety: every call from any thread. A forked child gets errors. Lifetime: a call that hangs keeps it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engines/cufile/api.h"
#include "penstock/result.h"
#include "penstock/route.h"

namespace penstock::cufile {

// What cuFile's driver says about itself once it is open.
struct DriverState {
  CfProperties properties{};
  bool compat_allowed = true;  // cuFile may take bytes through host memory
  bool compat_forced = false;
  bool prefers_p2pdma = false;
};
// The way to a file that could be registered; nothing where there is none. A pure function.
std::optional<Route> route_from_state(const DriverState& state);

// Operations by the way they took.
struct Counts {
  std::uint64_t p2pdma = 0;
  std::uint64_t nvidia_fs = 0;
  std::uint64_t posix = 0;
};
// What the counts, of which an operation is one, make of the way that it was expected to take. A pure function.
Route route_from_counts(Route expected, const Counts& counts);

class Library : public std::enable_shared_from_this<Library> {
 public:
  // Loads libcufile, unless somebody holds it already. Code::engine_unavailable where there is none.
  static Result<std::shared_ptr<Library>> acquire();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const Api& api() const { return api_; }
  int version() const { return version_; }  // 1150 is 1.15.0; 0 if it does not tell
  const std::string& path() const { return path_; }

  struct Wishes {
    bool compat = false;  // let cuFile go through host memory
    bool p2pdma = false;  // let it use the kernel's P2PDMA
  };
  // Opens the driver, which may take seconds. The first call decides, also for how it ended: a driver that failed to
  // open is not tried again in this process, because newer releases never return from a second attempt. One that opens
  // too late serves those who ask later. While a stream waits for us it is not tried at all (Code::would_deadlock).
  Status open(const Wishes& wishes);
  // REQUIRES: open() succeeded.
  const DriverState& state() const { return state_; }
  // Whether somebody else had opened the driver before, with settings that are not ours.
  bool opened_by_others() const { return foreign_; }

  // Operations since the driver was opened here; nothing where cuFile does not count them.
  std::optional<Counts> counts() const;
  // The way of an operation that has just ended.
  Route judge(Route expected) const;

  // An O_DIRECT descriptor as a handle; `name` is for messages. `owner` holds the descriptor, for as long as cuFile may
  // look at it.
  Result<CfHandle> register_file(int fd, const std::string& name, const std::shared_ptr<const void>& owner) const;

  // Make a call that may never come back; what they are given must own what it needs. Code::engine_unavailable if it
  // does not come back in time. Where another has not yet, set_up does not begin at all, and take_down does not wait.
  // `undo` is called if the call succeeds when nobody waits for it any more.
  using Call = std::function<CfError()>;
  Result<CfError> set_up(const char* function, Call call, std::function<void()> undo = nullptr) const;
  Status take_down(const char* function, std::function<void()> call) const;
  // Whether such a call has not come back yet.
  bool is_stuck() const { return hanging_ > 0; }
  // How long such a call may take.
  void set_patience(double seconds) { patience_seconds_ = seconds; }

 private:
  Library() = default;
  static Result<std::shared_ptr<Library>> load();
  Status check_process() const;
  Error hangs() const;
  std::optional<CfError> wait_for(const char* function, double seconds, Call call, std::function<void()> undo) const;
  Status try_open(const Wishes& wishes);
  void set_wishes(const Wishes& wishes);
  Status read_state();
  void start_statistics();
  Counts read_counts() const;

  Api api_;
  int version_ = 0;
  std::string path_;
  pid_t process_ = 0;

  // Opening takes a second or two, with eight GPUs several; registering takes milliseconds.
  std::atomic<double> patience_seconds_{10};
  mutable std::atomic<int> hanging_{0};
  mutable std::atomic<const char*> hangs_in_{""};  // the first of them

  std::mutex mutex_;
  std::condition_variable waited_for_opening_;
  enum class Opening : std::uint8_t { not_begun, begun, waited_for } opening_stage_ = Opening::not_begun;
  std::optional<Status> opening_;  // how it ended
  std::shared_ptr<Library> kept_;  // itself, so that a failure is remembered
  bool foreign_ = false;
  DriverState state_;
  bool counting_ = false;
  Counts baseline_;
};

}  // namespace penstock::cufile
