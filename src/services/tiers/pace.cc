#include "services/tiers/pace.h"

#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/callback.h"
#include "services/tiers/catalog.h"

namespace penstock::tiers {
namespace {

constexpr Duration between_questions = std::chrono::milliseconds(100);
constexpr Duration nap = std::chrono::milliseconds(20);

}  // namespace

MoveOptions one_at_a_time(MoveOptions options) {
  // Shared by the callbacks of all copies.
  const auto mutex = std::make_shared<std::mutex>();
  if (options.keep_going) {
    options.keep_going = [mutex, ask = std::move(options.keep_going)] {
      const std::scoped_lock lock(*mutex);
      return ask();
    };
  }
  if (options.on_progress) {
    options.on_progress = [mutex, tell = std::move(options.on_progress)](const MoveProgress& progress) {
      const std::scoped_lock lock(*mutex);
      tell(progress);
    };
  }
  return options;
}

Pace::Pace(Catalog& catalog, const MoveOptions& options) : catalog_(catalog), options_(options) {}

// What costs nothing.
Status Pace::ask_often() {
  if (options_.keep_going && !call_back("MoveOptions::keep_going", options_.keep_going)) {
    return Error{Code::cancelled, 0, "the move was stopped", "start it again: it goes on where it was"};
  }
  return {};
}

Status Pace::ask() {
  if (Status status = ask_often(); !status) return status;
  if (Clock::now() - asked_at_ < between_questions) return {};
  for (;;) {
    asked_at_ = Clock::now();
    if (check_) {
      if (Status status = check_(); !status) return status;
    }
    if (!heeds_pause_) return {};
    const Result<bool> paused = catalog_.paused();
    if (!paused) return paused.error();
    if (!*paused) return {};
    if (pause_) tell(pause_());
    const TimePoint until = Clock::now() + between_questions;
    while (Clock::now() < until) {
      if (Status status = ask_often(); !status) return status;
      std::this_thread::sleep_for(nap);
    }
    begin_ = Clock::now();
    bytes_ = 0;
  }
}

Status Pace::after(std::uint64_t bytes) {
  if (Status status = ask(); !status) return status;
  if (options_.bytes_per_second == 0) return {};
  bytes_ += bytes;
  const double seconds = static_cast<double>(bytes_) / static_cast<double>(options_.bytes_per_second);
  const TimePoint due = time_after(begin_, duration_from_seconds(seconds));
  while (Clock::now() < due) {
    if (Status status = ask(); !status) return status;
    std::this_thread::sleep_for(std::min<Duration>(nap, due - Clock::now()));
  }
  return {};
}

void Pace::tell(const MoveProgress& progress, bool at_once) {
  if (!options_.on_progress || (!at_once && Clock::now() - told_at_ < between_questions)) return;
  told_at_ = Clock::now();
  call_back("MoveOptions::on_progress", options_.on_progress, progress);
}

}  // namespace penstock::tiers
