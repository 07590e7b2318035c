// What the handles of an open store ask for (penstock::Store).
#include "base/callback.h"
#include "base/clock.h"
#include "core/store_entry.h"

namespace penstock::core {

Result<std::uint64_t> StoreEntry::size_bytes() {
  const auto state = ask([](engine::Store& store) { return store.state(); });
  if (!state) return state.error();
  return state->size_bytes;
}

Result<Identity> StoreEntry::identity() {
  auto state = ask([](engine::Store& store) { return store.state(); });
  if (!state) return std::move(state).error();
  return std::move(state->identity);
}

std::optional<std::uint64_t> StoreEntry::cached_bytes(std::uint64_t offset, std::uint64_t length) const {
  const engine::PageCache* cache = store_->page_cache();
  return cache != nullptr ? cache->resident_bytes(offset, length) : std::nullopt;
}

Result<View> StoreEntry::view() {
  if (store_->mapping() != nullptr) return ask([](engine::Store& store) { return store.mapping()->map(); });
  return Error{Code::unsupported, 0, info().name + " can't be mapped", "read it into memory"};
}

Status StoreEntry::commit(bool durable) {
  Replacing* const unfinished = replacing();
  const bool is_unfinished = unfinished != nullptr && unfinished->state() == Replacing::State::open;
  if (is_unfinished && unfinished->is_spoilt()) {
    return Error{Code::invalid_argument, 0,
                 info().name +
                     ": a write to it was abandoned and may still land, or memory was short, so it does not "
                     "take the name",
                 "abort, and replace it anew: the old file stays"};
  }
  if (const auto unwritten = is_unfinished ? unfinished->unwritten() : std::nullopt) {
    return Error{Code::invalid_argument, 0,
                 info().name + ": a write to bytes " + std::to_string(unwritten->begin) + " to " +
                     std::to_string(unwritten->end) + " failed, so it does not take the name",
                 "repeat what failed, or abort: the old file stays"};
  }
  if (store_->writer() == nullptr) {
    return Error{Code::read_only, 0, info().name + " was opened for reading only",
                 "only stores opened for writing can be committed"};
  }
  const TimePoint begun = Clock::now();
  Status committed = ask([durable](engine::Store& store) { return store.writer()->commit(durable); });
  const TimePoint now = Clock::now();
  if (durable && committed) cached_file_.note_sync(now - begun, now);
  let_go_of_replaced();
  const bool has_name = committed.ok() || committed.error().code == Code::not_durable;
  if (unfinished != nullptr && has_name) unfinished->finish(Replacing::State::committed);
  const auto& on_commit = options().on_commit;
  if (!committed || !on_commit) return committed;
  return call_back("OpenOptions::on_commit", on_commit);
}

Status StoreEntry::abort() {
  if (store_->writer() == nullptr) return Status{};
  if (replacing() != nullptr) replacing()->finish(Replacing::State::aborted);
  return ask([](engine::Store& store) { return store.writer()->abort(); });
}

}  // namespace penstock::core
