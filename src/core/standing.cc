#include "core/standing.h"

#include <utility>

#include "base/callback.h"
#include "base/out_of_memory.h"
#include "core/lane_set.h"
#include "cuda/quiet.h"

namespace penstock::core {

Result<std::shared_ptr<StandingRequest>> StandingRequest::create(cuda::Device& gpu, Round round) {
  const std::string what = "stand by for " + gpu.info().domain.name();
  if (gpu.api().stream_wait_value == nullptr || gpu.api().stream_write_value == nullptr) {
    return Error{Code::unsupported, 0, what + ": the driver has no cuStreamWaitValue32",
                 "update NVIDIA's driver to one for CUDA 12, or submit a request for each round"};
  }
  round.settings.may_wait = false;
  auto standing = std::make_shared<StandingRequest>(Private{}, gpu, std::move(round));
  for (cuda::ControlMemory::Cell* cell : {&standing->begin_, &standing->end_}) {
    auto taken = cuda::ControlMemory::of_process().take(gpu, cuda::ControlMemory::other_word_bytes);
    if (!taken) return std::move(taken).error();
    *cell = *taken;
    word(*cell).store(0, std::memory_order_relaxed);
  }
  if (!cuda::Quiet::of_process().begin_wait()) {
    return Error{Code::would_deadlock, 0, what + ": memory is being freed, which takes too long",
                 "the device may be busy with work that waits for this thread: submit that first"};
  }
  gpu.stream_waits().fetch_add(1);
  standing->counts_ = true;
  return standing;
}

Result<std::shared_ptr<Request>> StandingRequest::make(bool is_closing) const {
  return or_out_of_memory([&]() -> Result<std::shared_ptr<Request>> {
    const auto ranges = call_back("RangeSource", round_.ranges);
    if (!ranges) return ranges.error();
    auto request = or_out_of_memory([&]() -> Result<std::shared_ptr<Request>> {
      if (is_closing) return Error{Code::closed, 0, "closing", ""};
      if (auto status = Request::check_domain(*ranges, gpu_.info().domain); !status) return std::move(status).error();
      return Request::create(round_.environment, *ranges, round_.settings, round_.options);
    });
    if (request) {
      (*request)->order = cuda::StreamOrder::answer(gpu_, end_);
    } else if (round_.settings.kind != engine::OpKind::read) {
      Request::note_unwritten(*ranges);
    }
    return request;
  });
}

std::shared_ptr<Request> StandingRequest::look() {
  const std::scoped_lock turn(turn_);
  if (has_ended() || word(begin_).load(std::memory_order_acquire) != 1) return nullptr;
  word(begin_).store(0, std::memory_order_relaxed);
  rounds_.fetch_add(1, std::memory_order_relaxed);
  const auto lanes = round_.lanes.lock();
  auto made = make(lanes == nullptr);
  const std::scoped_lock lock(mutex_);
  last_ = nullptr;
  error_.reset();
  if (made) {
    Status submitted = or_out_of_memory([&] { return lanes->submit(*made), Status(); });
    if (submitted) return last_ = std::move(*made);
    error_ = std::move(submitted).error();
    return nullptr;  // the request lets the stream go on when it goes
  }
  error_ = std::move(made).error();
  word(end_).store(1, std::memory_order_release);
  return nullptr;
}

// A round that runs lets its stream go when nothing of it can touch the memory any more.
void StandingRequest::end() {
  const std::scoped_lock turn(turn_);
  if (ended_.exchange(true, std::memory_order_acq_rel) || !counts_) return;
  {
    const std::scoped_lock lock(mutex_);
    if (last_ && !last_->ended()) {
      last_->stop(Code::cancelled);
    } else if (word(begin_).load(std::memory_order_acquire) == 1) {
      word(end_).store(1, std::memory_order_release);
    }
  }
  gpu_.stream_waits().fetch_sub(1);
  cuda::Quiet::of_process().end_wait();
}

Status StandingRequest::enqueue(void* stream) {
  if (has_ended()) return Error{Code::closed, 0, "the Standing has ended", "stand by anew"};
  const cuda::Current current(gpu_);
  auto* const handle = static_cast<cuda::CuStream>(stream);
  const auto& api = gpu_.api();
  cuda::CuResult result = api.stream_write_value(handle, begin_.device, 1, 0);
  const bool is_begun = result == cuda::cu_success;
  if (is_begun) result = api.stream_wait_value(handle, end_.device, 1, cuda::cu_wait_value_geq);
  if (result == cuda::cu_success) result = api.stream_write_value(handle, end_.device, 0, 0);
  if (result == cuda::cu_success) return {};
  if (is_begun) end();  // its words can't be trusted any more
  return gpu_.driver().error(result, "put a round of a standing request on a stream",
                             "give a stream of " + gpu_.info().domain.name() + " that has not been destroyed");
}

Report StandingRequest::report() const {
  const std::scoped_lock lock(mutex_);
  if (last_) return last_->report();
  Report report;
  if (error_) {
    report.outcome = Outcome::failed;
    report.error = *error_;
  }
  return report;
}

}  // namespace penstock::core
