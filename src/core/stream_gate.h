// StreamGate: requests in stream order wait here, outside the lanes, until their stream has come to them. So a request
// that waits holds no staging memory and no lane, and others can't wait for it in turn.
//
// Thread safety: any thread. Lifetime: ended by close(), which ends what waits.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/request.h"
#include "core/standing.h"

namespace penstock::core {

class StreamGate {
 public:
  ~StreamGate();

  // `start` is called on the gate's thread when the stream has come to the request, and again as long as it says false;
  // it must not hang, since all streams wait for that thread. Where the stream comes to it at once, it is called here.
  // If the request is stopped before it says true, it ends with the reason. An error, and nothing is kept, after close
  // and where the thread can't be started.
  Status add(std::shared_ptr<Request> request, std::function<bool()> start);
  // Looked at until it has ended.
  Status add(std::shared_ptr<StandingRequest> standing);
  // Ends every request in stream order, waiting or running, and lets their streams go on: copies can't get past them.
  // False, and nothing happens, where there are none, or a lane has just done that: what waits since may not be in the
  // way.
  bool break_all(TimePoint now, Duration patience);
  void close();

 private:
  struct Waiting {
    std::shared_ptr<Request> request;
    std::function<bool()> start;
  };
  Status ensure_thread();
  void run();
  void note(const std::shared_ptr<Request>& request);
  // Whether a round began.
  bool look_at(StandingRequest& standing);
  // Whether the request has left the gate.
  static bool look_at(const Waiting& waiting);
  static bool look_at_once(const Waiting& waiting);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::optional<TimePoint> broken_;  // when that was last done
  // Lists: the thread takes them out and puts them back without memory.
  std::list<Waiting> waiting_;
  std::list<std::shared_ptr<StandingRequest>> standing_;
  std::vector<std::weak_ptr<Request>> ordered_;  // those, and those that run
  std::thread thread_;                           // started by the first request
};

}  // namespace penstock::core
