#include "penstock/store.h"

#include <utility>

#include "base/callback.h"
#include "base/clock.h"
#include "base/out_of_memory.h"
#include "core/store_entry.h"

namespace penstock {

Store::Store() = default;
Store::Store(std::shared_ptr<core::StoreEntry> entry) : entry_(std::move(entry)) {}
Store::Store(const Store&) = default;
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(const Store& other) {
  return *this = Store(other);
}
Store& Store::operator=(Store&& other) noexcept {
  Store before(std::move(other));
  entry_.swap(before.entry_);
  return *this;
}
// A store that is closed is closed when its last handle is gone; unless a request has it still, which closes it later.
Store::~Store() {
  if (entry_.use_count() == 1) entry_->close_and_wait();
}

namespace {

Error not_open() {
  return {Code::invalid_argument, 0, "this Store is not open",
          "use one that open returned, and that was not moved from"};
}

}  // namespace

const StoreInfo& Store::info() const {
  static const StoreInfo none;
  return entry_ ? entry_->info() : none;
}

Result<std::uint64_t> Store::size_bytes() const {
  return or_out_of_memory([&]() -> Result<std::uint64_t> {
    if (!entry_) return not_open();
    const auto state = entry_->ask([](engine::Store& store) { return store.state(); });
    if (!state) return state.error();
    return state->size_bytes;
  });
}

Result<Identity> Store::identity() const {
  return or_out_of_memory([&]() -> Result<Identity> {
    if (!entry_) return not_open();
    auto state = entry_->ask([](engine::Store& store) { return store.state(); });
    if (!state) return std::move(state).error();
    return std::move(state->identity);
  });
}

void Store::await_writers() const {
  if (entry_) entry_->store().await_writers();
}

std::optional<std::uint64_t> Store::cached_bytes(std::uint64_t offset, std::uint64_t length) const {
  const engine::PageCache* cache = entry_ ? entry_->store().page_cache() : nullptr;
  return cache != nullptr ? cache->resident_bytes(offset, length) : std::nullopt;
}

Result<View> Store::view() const {
  return or_out_of_memory([&]() -> Result<View> {
    if (!entry_) return not_open();
    if (entry_->store().mapping() != nullptr)
      return entry_->ask([](engine::Store& store) { return store.mapping()->map(); });
    return Error{Code::unsupported, 0, info().name + " can't be mapped", "read it into memory"};
  });
}

Status Store::commit(bool durable) {
  return or_out_of_memory([&]() -> Status {
    if (!entry_) return not_open();
    core::Replacing* const replacing = entry_->replacing();
    const bool is_unfinished = replacing != nullptr && replacing->state() == core::Replacing::State::open;
    if (is_unfinished && replacing->is_spoilt()) {
      return Error{Code::invalid_argument, 0,
                   info().name +
                       ": a write to it was abandoned and may still land, or memory was short, so it does not "
                       "take the name",
                   "abort, and replace it anew: the old file stays"};
    }
    if (const auto unwritten = is_unfinished ? replacing->unwritten() : std::nullopt) {
      return Error{Code::invalid_argument, 0,
                   info().name + ": a write to bytes " + std::to_string(unwritten->begin) + " to " +
                       std::to_string(unwritten->end) + " failed, so it does not take the name",
                   "repeat what failed, or abort: the old file stays"};
    }
    if (entry_->store().writer() != nullptr) {
      const TimePoint begun = Clock::now();
      Status committed = entry_->ask([durable](engine::Store& store) { return store.writer()->commit(durable); });
      const TimePoint now = Clock::now();
      if (durable && committed) entry_->cached_file().note_sync(now - begun, now);
      entry_->let_go_of_replaced();
      const bool has_name = committed.ok() || committed.error().code == Code::not_durable;
      if (replacing != nullptr && has_name) replacing->finish(core::Replacing::State::committed);
      const auto& on_commit = entry_->options().on_commit;
      if (!committed || !on_commit) return committed;
      return call_back("OpenOptions::on_commit", on_commit);
    }
    return Error{Code::read_only, 0, info().name + " was opened for reading only",
                 "only stores opened for writing can be committed"};
  });
}

Status Store::abort() {
  return or_out_of_memory([&]() -> Status {
    if (!entry_) return not_open();
    if (entry_->store().writer() == nullptr) return Status{};
    if (entry_->replacing() != nullptr) entry_->replacing()->finish(core::Replacing::State::aborted);
    return entry_->ask([](engine::Store& store) { return store.writer()->abort(); });
  });
}

}  // namespace penstock
