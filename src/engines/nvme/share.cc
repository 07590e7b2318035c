#include "engines/nvme/share.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace penstock::nvme {
namespace {

constexpr std::uint32_t number_shift = 32;
constexpr std::uint64_t cookie_mask = (std::uint64_t{1} << number_shift) - 1;

}  // namespace

Share::Share(std::shared_ptr<SharedQueue> shared, int event)
    : shared_(std::move(shared)), event_(event), interrupt_(shared_->queue->interrupt()) {
  const std::lock_guard lock(shared_->mutex);
  const auto place = std::find(shared_->shares.begin(), shared_->shares.end(), nullptr);
  number_ = static_cast<std::uint64_t>(place - shared_->shares.begin());
  if (place == shared_->shares.end()) shared_->shares.push_back(nullptr);
  shared_->shares[number_] = this;
}

Share::~Share() {
  const std::lock_guard lock(shared_->mutex);
  shared_->shares[number_] = nullptr;
}

void Share::make_room(std::size_t operations) {
  const std::lock_guard lock(shared_->mutex);
  inbox_.reserve(operations);
}

std::size_t Share::submit(std::span<Io> ios) {
  const auto lock = try_enter();
  if (!lock) return 0;
  for (Io& io : ios) io.cookie = (io.cookie & cookie_mask) | number_ << number_shift;
  return shared_->queue->submit(ios);
}

std::size_t Share::poll(std::span<IoDone> done) {
  const auto lock = try_enter();
  missed_ = !lock;
  if (missed_) return 0;
  std::size_t count = std::min(done.size(), inbox_.size());
  std::copy_n(inbox_.begin(), count, done.begin());
  inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(count));
  // To the last one: nobody would tell the others of what is left.
  std::array<IoDone, 16> some;
  for (std::size_t got = some.size(); got == some.size();) {
    got = shared_->queue->poll(some);
    for (const IoDone& one : std::span(some).first(got)) {
      if (one.cookie >> number_shift == number_ && count < done.size()) {
        done[count] = one;
        done[count++].cookie &= cookie_mask;
      } else {
        deliver(one);
      }
    }
  }
  return count;
}

// To the share that it belongs to; one that is gone has left it behind.
void Share::deliver(const IoDone& done) {
  Share* const owner = shared_->shares[done.cookie >> number_shift];
  if (owner == nullptr) return;
  owner->inbox_.push_back(done);
  owner->inbox_.back().cookie &= cookie_mask;
  if (owner == this || owner->event_ < 0 || owner->inbox_.size() > 1) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(owner->event_, &one, sizeof one);
}

void Share::cancel(std::uint32_t cookie) {
  if (const auto lock = try_enter()) shared_->queue->cancel(cookie | number_ << number_shift);
}

TimePoint Share::next_deadline() {
  const auto lock = try_enter();
  return lock ? shared_->queue->next_deadline() : TimePoint::max();
}

void Share::after_sleep() {
  if (const auto lock = try_enter()) shared_->queue->after_sleep();
}

bool Share::is_stuck() {
  const auto lock = try_enter();
  return lock && shared_->queue->is_stuck();
}

}  // namespace penstock::nvme
