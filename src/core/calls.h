// Calls: what is asked of engines and stores beside the bytes of requests, where another machine or program may have to
// answer. Each is an operation (OpKind::call) on a Queue that has nothing else to do. Nobody waits for it longer than
// he has time: then it goes on by itself, with what it needs.
//
// Thread safety: any thread. Lifetime: shared by the Context, its stores and the calls that are under way.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/out_of_memory.h"
#include "engine/engine.h"
#include "penstock/options.h"

namespace penstock::core {

class Calls : public std::enable_shared_from_this<Calls> {
  struct Place;

 public:
  // So many may be away that nobody waits for any more; the next call is refused.
  static constexpr std::uint32_t away_most = 64;

  Calls(std::shared_ptr<const engine::Table> engines, const Deadlines& deadlines);
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // A call that was begun. Destroyed before it has ended, it goes on by itself.
  class Begun {
   public:
    Begun(Begun&&) noexcept;
    Begun& operator=(Begun&&) = delete;
    ~Begun();
    // Waits until it has been run; Code::timed_out if it was not by then.
    Status wait_until(TimePoint time);

   private:
    friend class Calls;
    Begun(std::shared_ptr<Calls> calls, std::unique_ptr<Place> place);
    std::shared_ptr<Calls> calls_;  // shared: it may outlive the Context
    std::unique_ptr<Place> place_;  // null: it has ended
  };
  Result<Begun> begin(std::size_t engine, std::shared_ptr<engine::Call> call);

  // When who has no deadline gives up.
  TimePoint patience_end() const;
  // When who closes a store goes on without it.
  TimePoint closing_end() const { return Clock::now() + duration_from_seconds(deadlines_.close_seconds); }
  // What `ask()` returns, a Result or a Status, if it does so in time. It must own what it needs. An answer that comes
  // too late is let go of where it was found. `name` is what errors call what is asked.
  template <typename Ask>
  auto run(std::size_t engine, const std::string& name, TimePoint deadline, Ask ask) -> decltype(ask());

  // Leaves what is away to itself.
  void close();

 private:
  template <typename Ask>
  class Question;

  static Error unanswered();
  std::unique_ptr<Place> take_free(std::size_t engine);
  void give_back(std::unique_ptr<Place> place);
  // Takes those out of `away_` that have ended.
  std::unique_ptr<Place> take_ended();
  void leave(std::unique_ptr<Place> place);
  void keep_company(std::unique_ptr<Place> place) const;

  const std::shared_ptr<const engine::Table> engines_;  // shared: engines must outlive their queues
  const Deadlines deadlines_;
  const ForkGuard fork_guard_;
  std::mutex mutex_;             // guards what follows
  std::unique_ptr<Place> free_;  // a list, as the next
  std::unique_ptr<Place> away_;
  std::uint32_t free_count_ = 0;
  std::uint32_t away_count_ = 0;
  bool closed_ = false;
};

template <typename Ask>
class Calls::Question : public engine::Call {
 public:
  using Answer = decltype(std::declval<Ask&>()());
  explicit Question(Ask ask) : ask_(std::move(ask)) {}

  void run() override {
    answer_.emplace(or_out_of_memory([&] { return (*ask_)(); }));
    ask_.reset();  // with what it holds, whoever waits for the answer
    if (end_.exchange(End::answered) == End::given_up) answer_.reset();
  }
  // Nothing if there is no answer yet: then nobody will want it.
  std::optional<Answer> take() {
    if (end_.exchange(End::given_up) == End::answered) return std::move(answer_);
    return std::nullopt;
  }

 private:
  enum class End : std::uint8_t { pending, answered, given_up };
  std::optional<Ask> ask_;
  std::optional<Answer> answer_;
  std::atomic<End> end_{End::pending};
};

template <typename Ask>
auto Calls::run(std::size_t engine, const std::string& name, TimePoint deadline, Ask ask) -> decltype(ask()) {
  const auto question = std::make_shared<Question<Ask>>(std::move(ask));  // shared: it may outlive this function
  auto begun = begin(engine, question);
  Status status = begun ? begun->wait_until(std::min(deadline, patience_end())) : Status(std::move(begun).error());
  if (auto answer = question->take()) return *std::move(answer);
  Error error = status ? unanswered() : std::move(status).error();
  error.message.insert(0, name + ": ");
  return error;
}

}  // namespace penstock::core
