// WindowRing: requests that take turns in a few windows of memory, so that the next are under way while the caller
// works on the last: for what is longer than memory, or need not be there at once.
//
//   auto ring = penstock::WindowRing::create(context, {.size_bytes = 16 << 20}).value();
//   std::uint64_t next = 0;
//   const auto begin = [&](const penstock::Window& window) -> penstock::Result<penstock::Ticket> {
//     if (next == size_bytes) return penstock::Ticket();
//     const auto length = std::min<std::uint64_t>(window.memory.size_bytes, size_bytes - next);
//     const penstock::Range range{&file, std::exchange(next, next + length), window.memory.part(0, length)};
//     return context.submit(penstock::Direction::read, {&range, 1});
//   };
//   for (auto window = ring.next(begin); window && *window; window = ring.next(begin)) work_on(**window);
//
// Thread safety: one thread at a time. Lifetime: it keeps its Context open. The destructor cancels what is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "penstock/context.h"

namespace penstock {

struct Window {
  std::size_t number = 0;  // below WindowShape::count
  Region memory;
};

struct WindowShape {
  std::size_t count = 2;
  std::uint64_t size_bytes = 0;  // of each; 0: requests that bring memory of their own take turns
  Domain domain{};
};

class PENSTOCK_EXPORT WindowRing {
 public:
  // Starts a request in a window. A null Ticket: there is nothing to start now; it is asked again when one has ended.
  // An Error is told when what was started before has been given out, and nothing is started any more.
  using Begin = std::function<Result<Ticket>(const Window& window)>;
  // Waits for a request, which it may cancel, and says whether all went well.
  using Await = std::function<Status(Ticket& ticket, const Window& window)>;

  static Result<WindowRing> create(const Context& context, const WindowShape& shape);
  WindowRing(WindowRing&&) noexcept = default;
  WindowRing& operator=(WindowRing&&) = delete;
  ~WindowRing();

  // Starts what there are windows for, and waits for the oldest request. Its window is the caller's until the next
  // call. Nothing once all have ended and `begin` has nothing more; after that, the ring may be used again.
  Result<std::optional<Window>> next(const Begin& begin, const Await& await = wait_for_end);

  // Waits until a request has ended, and tells its error.
  static Status wait_for_end(Ticket& ticket, const Window& window);

 private:
  struct Turn {
    Buffer memory;
    Ticket ticket;
  };

  explicit WindowRing(std::vector<Turn> turns) : turns_(std::move(turns)) {}
  void start(const Begin& begin);
  Window window(std::size_t turn) const;

  std::vector<Turn> turns_;
  std::size_t begun_ = 0;  // requests ever
  std::size_t ended_ = 0;  // of those, which were waited for
  std::optional<Error> failed_;
};

}  // namespace penstock
