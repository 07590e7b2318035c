// Watch: a call whose caller is asked meanwhile whether to go on, so that a person can end it.
//
// Thread safety: one thread's, which is the one that asks. Lifetime: of the call. Memory is borrowed until a transfer
// returns, and longer where its report says `abandoned` (penstock/request.h).
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>

#include "penstock/context.h"

namespace penstock::rows {

class Watch {
 public:
  // Asked about twenty times a second; empty: nobody is asked.
  explicit Watch(const std::function<bool()>& keep_going) : keep_going_(keep_going) {}

  // Asks if it is time to.
  bool goes_on();
  // Code::would_deadlock inside a completion callback; `verb` is what the caller does: "gather".
  static Status check_may_wait(const std::string& verb);
  // Cancels the request, and returns when it has ended.
  static void end(Ticket& ticket);
  // Code::cancelled.
  static Error told_to_stop();
  // Until the request has ended. REQUIRES: check_may_wait is ok. The request is cancelled if it is not to go on.
  void wait(Ticket& ticket);
  // As Context::transfer. REQUIRES: check_may_wait is ok.
  Report transfer(const Context& context, Direction direction, std::span<const Range> ranges,
                  const RequestOptions& options);

 private:
  const std::function<bool()>& keep_going_;
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
  bool stopped_ = false;
};

}  // namespace penstock::rows
