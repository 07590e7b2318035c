// Backend: what a Context stands for. The library inside this process is one (src/local); a client of a daemon can be
// another. Handles of the public API (Context, Store, Ticket, Standing) hold these interfaces and nothing else, so a
// product that is built on them works with every backend.
//
// Thread safety: every call from any thread. Lifetime: shared by the copies of a Context. OpenStore and PendingRequest
// may outlive their Backend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "client/completion_port.h"
#include "penstock/context.h"

namespace penstock::client {

// The implementation that an OpenStore belongs to. Compared by address.
struct StoreFamily {};

// An open store. Member functions are those of penstock::Store.
class OpenStore {
 public:
  explicit OpenStore(const StoreFamily& family) : family_(family) {}
  virtual ~OpenStore() = default;
  OpenStore(const OpenStore&) = delete;
  OpenStore& operator=(const OpenStore&) = delete;

  bool is_of(const StoreFamily& family) const { return &family_ == &family; }

  virtual const StoreInfo& info() const = 0;
  virtual Result<std::uint64_t> size_bytes() = 0;
  virtual Result<Identity> identity() = 0;
  virtual void await_writers() = 0;
  virtual std::optional<std::uint64_t> cached_bytes(std::uint64_t offset, std::uint64_t length) const = 0;
  virtual Result<View> view() = 0;
  virtual Status commit(bool durable) = 0;
  virtual Status abort() = 0;
  // Called by the last handle. Waits until the store is closed, for a bounded time.
  virtual void close_and_wait() = 0;

 private:
  const StoreFamily& family_;
};

// A submitted request. Member functions are those of penstock::Ticket; each that looks at the request also makes
// progress on it.
class PendingRequest {
 public:
  PendingRequest() = default;
  virtual ~PendingRequest() = default;
  PendingRequest(const PendingRequest&) = delete;
  PendingRequest& operator=(const PendingRequest&) = delete;

  virtual Outcome poll() = 0;
  virtual std::uint64_t poll_bytes() = 0;
  // Returns whether the request has ended. A time that has passed: the same as poll.
  virtual bool wait(TimePoint until) = 0;
  // REQUIRES: all requests belong to the Backend of this one, which is among them.
  virtual bool wait_any(std::span<PendingRequest* const> requests, TimePoint until) = 0;
  virtual Report make_report() = 0;
  // `self` is this request.
  virtual void call_at_end(std::shared_ptr<PendingRequest> self, std::function<void()> call) = 0;
  // Returns at once.
  virtual void request_cancel() = 0;
  virtual Outcome cancel_and_wait() = 0;
};

// A request that streams start again and again. Member functions are those of penstock::Standing.
class StandingRequest {
 public:
  StandingRequest() = default;
  virtual ~StandingRequest() = default;
  StandingRequest(const StandingRequest&) = delete;
  StandingRequest& operator=(const StandingRequest&) = delete;

  virtual Status enqueue(void* stream) = 0;
  virtual std::uint64_t begin_word() const = 0;
  virtual std::uint64_t end_word() const = 0;
  virtual std::uint64_t rounds() const = 0;
  virtual Report report() const = 0;
  virtual void end() = 0;
};

// What a request does to its ranges. Zero and deallocate have no memory; a range's size is that of its Region.
enum class Operation : std::uint8_t { read, write, zero, deallocate };

class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Code::closed after close, and in a forked child.
  virtual Status usable() const = 0;
  virtual bool in_forked_child() const = 0;
  // Ends all requests with Code::closed and waits a bounded time. Later calls fail with Code::closed.
  virtual void close() = 0;

  // The schemes that open serves.
  virtual std::vector<std::string_view> schemes() const = 0;
  virtual Result<std::shared_ptr<OpenStore>> open(std::string_view name, const OpenOptions& options) = 0;
  virtual Result<std::shared_ptr<OpenStore>> open(Recipe recipe) = 0;

  virtual Result<Buffer> allocate(Domain domain, std::size_t size_bytes) = 0;
  virtual Status prepare(Domain domain) = 0;
  virtual Status attach(Region memory) = 0;
  virtual Status detach(Region memory) = 0;

  // Runs a request to its end.
  virtual Report run(Operation operation, std::span<const Range> ranges, const RequestOptions& options) = 0;
  virtual Result<std::shared_ptr<PendingRequest>> submit(Direction direction, std::span<const Range> ranges,
                                                         const RequestOptions& options) = 0;
  // To a CompletionQueue. The place is completed exactly once, unless the submission is refused.
  virtual Status submit(const std::shared_ptr<CompletionPort>& port, std::uint32_t place,
                        const Submission& submission) = 0;
  // Works on requests that no other thread works on, until something has completed or the time has come. False: there
  // is no such request.
  virtual bool progress(TimePoint until) = 0;
  // In stream order, with ranges that are asked for when the stream reaches the request.
  virtual Result<std::shared_ptr<PendingRequest>> submit(Direction direction, Domain gpu, RangeSource ranges,
                                                         const RequestOptions& options) = 0;
  virtual Result<std::shared_ptr<StandingRequest>> stand_by(Direction direction, Domain gpu, RangeSource ranges,
                                                            const RequestOptions& options) = 0;
  virtual Result<std::uint64_t> prefetch(std::span<const Range> ranges) = 0;

  virtual std::vector<EngineInfo> engines() const = 0;
  virtual Result<Plan> plan(const Store& store, Direction direction, Domain domain) const = 0;
  virtual const Options& options() const = 0;
  virtual const Machine& machine() const = 0;
  virtual Statistics statistics() const = 0;
  virtual void reset_statistics() = 0;
  virtual void count_mapped(std::uint64_t bytes, double seconds) = 0;
  virtual Trace trace(double since_seconds) const = 0;
};

// What a Context holds: its backend, and the schemes that functions of the program serve.
class Session;

// The way from handles of the public API to what they hold, and back.
struct Access {
  static Context context(std::shared_ptr<Session> session) { return Context(std::move(session)); }
  static Store store(std::shared_ptr<OpenStore> store) { return Store(std::move(store)); }
  static Ticket ticket(std::shared_ptr<PendingRequest> request) { return Ticket(std::move(request)); }
  static Standing standing(std::shared_ptr<StandingRequest> request) { return Standing(std::move(request)); }

  // Null: the handle is empty.
  static const std::shared_ptr<OpenStore>& of(const Store& store) { return store.store_; }
  static const std::shared_ptr<PendingRequest>& of(const Ticket& ticket) { return ticket.request_; }
  static const std::shared_ptr<Session>& of(const Context& context) { return context.session_; }
};

}  // namespace penstock::client
