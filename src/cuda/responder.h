// Responder: the threads that answer what streams ask the CPU (penstock/rendezvous.h).
//
// Threads that have nothing to do for a while sleep. Where a graph may ask at any time, one of them keeps watch: it
// takes short naps, looks, and wakes the others when somebody asks. A node of the graph that wakes them would need no
// watch, but the graph ends no earlier than that node, which takes up to 30 µs of the host's time in every replay.
//
// Thread safety: any thread. Lifetime: the process's: a graph may ask as long as it lives, whatever became of the
// Context.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "penstock/rendezvous.h"

namespace penstock::cuda {

// One that may be asked.
class Asked {
 public:
  virtual ~Asked() = default;
  // Answers if it is asked; false: it is not.
  virtual bool answer_if_asked(const Crew& crew) = 0;
  virtual bool is_asked() const = 0;
  // Whether it may be asked without a call of wake.
  virtual bool may_be_asked() const = 0;
  // Whether it never will be again.
  virtual bool is_over() const = 0;
};

class Responder : public Crew {
 public:
  static Responder& of_process();

  // Code::out_of_memory where no thread can be started.
  Status add(std::shared_ptr<Asked> asked);
  // Somebody is about to be asked, or over.
  void wake();
  std::size_t size() const;

  void share(std::size_t count, const std::function<void(std::size_t)>& part) const override;

 private:
  static constexpr std::size_t threads_most = 8;

  // What is shared among threads. The owner takes it back when nobody is inside.
  struct Work {
    const std::function<void(std::size_t)>* part = nullptr;
    std::size_t count = 0;
    std::atomic<std::size_t> next{0};

    void run() {
      for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) (*part)(i);
    }
  };
  struct Offer {
    std::atomic<Work*> work{nullptr};
    std::atomic<std::uint32_t> inside{0};
  };
  struct View {
    std::uint64_t version = 0;
    std::vector<std::shared_ptr<Asked>> asked;
  };

  Responder() = default;
  Status start();
  void work(std::size_t thread);
  bool look(View& view);
  bool help();
  void rest(View& view);
  void keep_watch(const View& view, std::uint32_t wakes);
  void refresh(View& view);
  void drop_those_that_are_over();

  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::shared_ptr<Asked>> asked_;
  std::size_t threads_ = 0;

  std::atomic<std::uint64_t> version_{1};  // of the list
  std::atomic<std::uint32_t> wakes_{0};
  std::atomic<bool> is_watched_{false};
  mutable std::array<Offer, threads_most> offers_;
};

}  // namespace penstock::cuda
