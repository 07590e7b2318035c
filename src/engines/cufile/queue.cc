#include "engines/cufile/queue.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <optional>

#include "cuda/driver.h"
#include "engines/cufile/buffers.h"
#include "engines/cufile/store.h"
#include "files/transfer.h"

namespace penstock::cufile {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;

// Above this, a thread for each transfer costs less than it gains.
constexpr std::uint64_t max_batched_bytes = 128 << 10;

const Store& store_of(const Op& op) {
  return *static_cast<const Store*>(op.store);
}

bool addressable(const Op& op) {
  constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  return op.offset <= max && op.length <= max - op.offset;
}

Done refuse(const Op& op, Code code, int number) {
  return {.cookie = op.cookie, .code = code, .system_error = number, .route = store_of(op).expected_route()};
}

class Worker : public files::Worker {
 public:
  explicit Worker(Lending lending) : lending_(lending), batch_(lending.library, lending.batches) {}

  Done run(const Op& op) override {
    if (!moves_bytes(op.kind)) return files::transfer(op);
    if (op.path != engine::Path::device) return refuse(op, Code::unsupported, EOPNOTSUPP);
    if (!addressable(op)) return refuse(op, Code::invalid_argument, EINVAL);
    const auto place = Buffers::find(op);
    if (!place) return refuse(op, place.error().code, place.error().system_error);
    const auto device = device_of(*place);
    if (!device) return refuse(op, device.error().code, device.error().system_error);
    const cuda::Current current(**device);
    return call(op, *place);
  }

  // Only where bytes go straight: batches in cuFile's compatibility mode are the ones that stall.
  bool joins_group(const Op& op) const override {
    if (!lending_.batches.on.load(std::memory_order_relaxed)) return false;
    if (!moves_bytes(op.kind) || op.path != engine::Path::device || !addressable(op)) return false;
    const Route route = store_of(op).expected_route();
    return op.length <= max_batched_bytes && (route == Route::gds || route == Route::p2pdma);
  }

  void run_group(std::span<const Op> ops, files::Completions& completions) override {
    bool is_run = false;
    try {
      is_run = run_batch(ops, completions);
    } catch (const std::bad_alloc&) {  // before the batch was begun
    }
    if (!is_run) files::Worker::run_group(ops, completions);
  }

 private:
  static Result<cuda::Device*> device_of(const Place& place) {
    const auto driver = cuda::Driver::get();
    if (!driver) return driver.error();
    return (*driver)->device(place.device);
  }

  Done call(const Op& op, const Place& place) const {
    const CfHandle handle = store_of(op).handle();
    const std::size_t bytes = std::min(op.length, files::max_transfer_bytes);
    const auto offset = static_cast<off_t>(op.offset);
    const Api& api = lending_.library.api();
    errno = 0;
    const ssize_t returned = op.kind == OpKind::read ? api.read(handle, place.base, bytes, offset, place.offset)
                                                     : api.write(handle, place.base, bytes, offset, place.offset);
    const int error = errno != 0 ? errno : EIO;
    const Route expected = store_of(op).expected_route();
    return finish(op, returned, error, returned > 0 ? lending_.library.judge(expected) : expected);
  }

  // Says whether the operations were started. Those of a batch are of one GPU, so that its context can be current.
  bool run_batch(std::span<const Op> ops, files::Completions& completions) {
    std::array<Transfer, max_batch> transfers;
    std::optional<Place> first;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const auto place = Buffers::find(ops[i]);
      if (!place || (first && place->device != first->device)) return false;
      if (!first) first = *place;
      const Store& store = store_of(ops[i]);
      transfers[i] = {ops[i], store.handle(), place->base, place->offset, store.expected_route()};
    }
    const auto device = device_of(*first);
    if (!device) return false;
    const cuda::Current current(**device);
    return batch_.run(std::span(transfers).first(ops.size()), completions);
  }

  const Lending lending_;
  Batch batch_;
};

}  // namespace

Queue::Queue(const engine::QueueOptions& options, Lending lending)
    : ThreadedQueue(options, [lending] { return std::make_unique<Worker>(lending); }) {}

}  // namespace penstock::cufile
