#include "penstock/layers.h"

#include <utility>

#include "base/out_of_memory.h"
#include "services/layers/cache.h"

namespace penstock {
namespace {

// Why a call can't be served; nothing: it can.
std::optional<Error> refusal(const layers::Cache* cache) {
  if (cache == nullptr) {
    return Error{Code::invalid_argument, 0, "these Layers have no groups", "use those that Layers::open gave"};
  }
  if (cache->in_child()) {
    return Error{Code::closed, 0, "the Layers belong to the parent of this process", "open them after the fork"};
  }
  return std::nullopt;
}

}  // namespace

Layers::Layers() = default;
Layers::Layers(std::unique_ptr<layers::Cache> cache) : cache_(std::move(cache)) {}
Layers::Layers(Layers&&) noexcept = default;

Layers& Layers::operator=(Layers&& other) noexcept {
  std::swap(cache_, other.cache_);
  return *this;
}

Layers::~Layers() {
  // The thread and the streams stayed with the parent.
  if (cache_ && cache_->in_child()) (void)cache_.release();
}

Result<Layers> Layers::open(const Context& context, const Model& model, std::vector<TensorGroup> groups,
                            const LayersOptions& options) {
  return or_out_of_memory([&]() -> Result<Layers> {
    auto cache = layers::Cache::open(context, model, std::move(groups), options);
    if (!cache) return std::move(cache).error();
    return Layers(std::move(*cache));
  });
}

const std::vector<TensorGroup>& Layers::groups() const {
  static const std::vector<TensorGroup> nothing;
  return cache_ ? cache_->infos() : nothing;
}

std::optional<std::size_t> Layers::find(std::string_view name) const {
  return cache_ ? cache_->find(name) : std::nullopt;
}

std::uint64_t Layers::size_bytes(std::size_t group) const {
  return cache_ ? cache_->size_bytes(group) : 0;
}

Result<std::span<const Region>> Layers::acquire(std::size_t group) {
  if (auto error = refusal(cache_.get())) return *std::move(error);
  return or_out_of_memory([&] { return cache_->acquire(group); });
}

Result<std::span<const Region>> Layers::acquire(std::size_t group, CudaStream) {
  return acquire(group);
}

Status Layers::release(std::size_t group, CudaStream stream) {
  if (auto error = refusal(cache_.get())) return *std::move(error);
  return or_out_of_memory([&] { return cache_->release(group, stream); });
}

Status Layers::check() {
  if (auto error = refusal(cache_.get())) return *std::move(error);
  return {};
}

Status Layers::hint(std::span<const std::size_t> groups) {
  if (auto error = refusal(cache_.get())) return *std::move(error);
  return or_out_of_memory([&] { return cache_->hint(groups); });
}

Status Layers::pin(std::size_t group) {
  if (auto error = refusal(cache_.get())) return *std::move(error);
  return or_out_of_memory([&] { return cache_->pin(group, true); });
}

Status Layers::unpin(std::size_t group) {
  if (auto error = refusal(cache_.get())) return *std::move(error);
  return or_out_of_memory([&] { return cache_->pin(group, false); });
}

LayersReport Layers::report() const {
  if (refusal(cache_.get())) return {};
  return cache_->report();
}

Status Layers::close(Held held) {
  if (!cache_) return {};
  if (auto error = refusal(cache_.get())) return *std::move(error);
  if (held == Held::refused) {
    if (Status status = cache_->check_unheld(); !status) return status;
  }
  if (!cache_->shut_down()) return check();
  return Error{Code::abandoned, 0, "a load has not come back, and may still write to the memory",
               "keep memory that you gave to the Layers until the process ends"};
}

}  // namespace penstock
