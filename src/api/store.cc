#include "penstock/store.h"

#include <utility>

#include "base/out_of_memory.h"
#include "client/backend.h"

namespace penstock {

Store::Store() = default;
Store::Store(std::shared_ptr<client::OpenStore> store) : store_(std::move(store)) {}
Store::Store(const Store&) = default;
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(const Store& other) {
  return *this = Store(other);
}
Store& Store::operator=(Store&& other) noexcept {
  Store before(std::move(other));
  store_.swap(before.store_);
  return *this;
}
// The last handle closes the store; if requests still use it, the last of them does.
Store::~Store() {
  if (store_.use_count() == 1) store_->close_and_wait();
}

namespace {

Error not_open() {
  return {Code::invalid_argument, 0, "this Store is not open",
          "use one that open returned, and that was not moved from"};
}

}  // namespace

const StoreInfo& Store::info() const {
  static const StoreInfo none;
  return store_ ? store_->info() : none;
}

Result<std::uint64_t> Store::size_bytes() const {
  if (!store_) return not_open();
  return or_out_of_memory([&] { return store_->size_bytes(); });
}

Result<Identity> Store::identity() const {
  if (!store_) return not_open();
  return or_out_of_memory([&] { return store_->identity(); });
}

void Store::await_writers() const {
  if (store_) store_->await_writers();
}

std::optional<std::uint64_t> Store::cached_bytes(std::uint64_t offset, std::uint64_t length) const {
  return store_ ? store_->cached_bytes(offset, length) : std::nullopt;
}

Result<View> Store::view() const {
  if (!store_) return not_open();
  return or_out_of_memory([&] { return store_->view(); });
}

Status Store::commit(bool durable) {
  if (!store_) return not_open();
  return or_out_of_memory([&] { return store_->commit(durable); });
}

Status Store::abort() {
  if (!store_) return not_open();
  return or_out_of_memory([&] { return store_->abort(); });
}

}  // namespace penstock
