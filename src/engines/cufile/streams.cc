#include "engines/cufile/streams.h"

#include <cerrno>
#include <new>

#include "engines/cufile/errors.h"

namespace penstock::cufile {

struct StreamTransfer::State {
  explicit State(cuda::Device& of) : device(of) {}
  ~State() {
    if (event != nullptr) device.give_back_event(event);
  }

  bool finished() const {
    const cuda::Current current(device);
    return recorded && device.api().event_query(event) != cuda::cu_not_ready;
  }

  cuda::Device& device;
  std::size_t length = 0;
  off_t file_offset = 0;
  off_t memory_offset = 0;
  ssize_t done = 0;
  cuda::CuEvent event = nullptr;
  bool recorded = false;  // behind the transfer
};

bool StreamTransfer::finished() const {
  return state_->finished();
}

Result<std::uint64_t> StreamTransfer::bytes() const {
  if (state_->done >= 0) return static_cast<std::uint64_t>(state_->done);
  if (state_->done < -cf_error_base) return make_error({static_cast<int>(-state_->done), 0}, "transfer on a stream");
  return system_error(state_->done == -1 ? EIO : static_cast<int>(-state_->done), "transfer on a stream");
}

StreamTransfers::~StreamTransfers() {
  forget_finished();
  for (auto& state : pending_) new (std::nothrow) std::shared_ptr(std::move(state));
}

Status StreamTransfers::register_stream(cuda::CuStream stream) const {
  if (!library_.api().has_streams()) return make_error({5038, 0}, "register a stream with cuFile");
  const cuda::Current current(device_);
  const CfError error = library_.api().stream_register(stream, cf_stream_all_fixed_and_aligned);
  return error.number == cf_success ? Status() : Status(make_error(error, "register a stream with cuFile"));
}

void StreamTransfers::deregister_stream(cuda::CuStream stream) const {
  const cuda::Current current(device_);
  if (library_.api().has_streams()) library_.api().stream_deregister(stream);
}

Result<StreamTransfer> StreamTransfers::read(const Range& range, cuda::CuStream stream) {
  return start(library_.api().read_async, range, stream);
}

Result<StreamTransfer> StreamTransfers::write(const Range& range, cuda::CuStream stream) {
  return start(library_.api().write_async, range, stream);
}

Result<StreamTransfer> StreamTransfers::start(Call call, const Range& range, cuda::CuStream stream) {
  const std::string what = "put a transfer on a stream";
  if (call == nullptr) return make_error({5038, 0}, what);
  forget_finished();
  const cuda::Current current(device_);
  auto state = std::make_shared<StreamTransfer::State>(device_);
  auto event = device_.take_event();
  if (!event) return std::move(event).error();
  state->event = *event;
  state->length = range.length;
  state->file_offset = static_cast<off_t>(range.file_offset);
  state->memory_offset = static_cast<off_t>(range.memory_offset);
  const CfError error =
      call(range.handle, range.base, &state->length, &state->file_offset, &state->memory_offset, &state->done, stream);
  if (error.number != cf_success) return make_error(error, what);
  const cuda::CuResult result = device_.api().event_record(state->event, stream);
  state->recorded = result == cuda::cu_success;
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(state);
  }
  if (!state->recorded) return device_.driver().error(result, what);
  return StreamTransfer(std::move(state));
}

void StreamTransfers::forget_finished() {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [](const auto& state) { return state->finished(); });
}

}  // namespace penstock::cufile
