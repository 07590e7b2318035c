#include "engines/cufile/batch.h"

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "engines/cufile/errors.h"
#include "files/transfer.h"

namespace penstock::cufile {
namespace {

constexpr Duration look_again = std::chrono::milliseconds(100);
constexpr Duration cancel_grace = std::chrono::seconds(1);

timespec to_timespec(Duration duration) {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  return {.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
}

// Retried by core, then one by one.
engine::Done try_again(const engine::Op& op) {
  return {.cookie = op.cookie, .code = Code::io_error, .system_error = EAGAIN};
}

}  // namespace

engine::Done finish(const engine::Op& op, std::int64_t returned, int error_number, Route route) {
  if (returned == -1) returned = -std::int64_t{error_number};
  engine::Done done = files::finish(op, std::max<std::int64_t>(returned, -cf_error_base));
  if (returned < -cf_error_base) {
    done.system_error = static_cast<std::int32_t>(-returned);
    done.code = code_from_number(done.system_error);
  }
  done.route = route;
  return done;
}

// What of a batch is still out.
struct Batch::Progress {
  std::span<const Transfer> transfers;
  files::Completions& completions;
  std::array<bool, max_batch> home{};
  std::size_t out = transfers.size();
  bool gave_up = false;
};

Batch::~Batch() {
  if (handle_ != nullptr) library_.api().batch_destroy(handle_);
}

bool Batch::set_up() {
  if (handle_ != nullptr) return true;
  if (library_.api().batch_set_up(&handle_, max_batch).number == cf_success) return true;
  handle_ = nullptr;
  return false;
}

bool Batch::run(std::span<const Transfer> transfers, files::Completions& completions) {
  if (!set_up()) return false;
  std::array<CfBatchEntry, max_batch> entries{};
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    entries[i] = {.mode = cf_batch_mode,
                  .transfer = {.base = transfer.base,
                               .file_offset = static_cast<off_t>(transfer.op.offset),
                               .memory_offset = transfer.memory_offset,
                               .size = transfer.op.length},
                  .handle = transfer.handle,
                  .opcode = transfer.op.kind == engine::OpKind::read ? cf_read : cf_write,
                  .cookie = reinterpret_cast<void*>(i)};  // NOLINT(performance-no-int-to-ptr): a number to cuFile
  }
  const auto count = static_cast<unsigned>(transfers.size());
  if (library_.api().batch_submit(handle_, count, entries.data(), 0).number != cf_success) return false;

  Progress progress{transfers, completions};
  TimePoint patient_until = Clock::now() + batches_.patience;
  while (progress.out > 0) {
    if (collect(progress, look_again)) patient_until = Clock::now() + batches_.patience;
    if (progress.out > 0 && Clock::now() >= patient_until) {
      give_up(progress);
      break;
    }
  }
  return true;
}

// Says whether anything came home.
bool Batch::collect(Progress& progress, Duration timeout) {
  std::array<CfBatchEvent, max_batch> events{};
  auto count = static_cast<unsigned>(progress.out);
  timespec limit = to_timespec(timeout);
  if (library_.api().batch_get_status(handle_, 1, &count, events.data(), &limit).number != cf_success) count = 0;
  bool any = false;
  for (const CfBatchEvent& event : std::span(events).first(std::min<std::size_t>(count, events.size()))) {
    const auto index = reinterpret_cast<std::size_t>(event.cookie);
    const int ended = cf_batch_invalid | cf_batch_cancelled | cf_batch_complete | cf_batch_timeout | cf_batch_failed;
    if ((event.status & ended) == 0 || index >= progress.transfers.size() || progress.home[index]) continue;
    progress.home[index] = true;
    --progress.out;
    any = true;
    const Transfer& transfer = progress.transfers[index];
    const auto result = static_cast<std::int64_t>(event.result);
    if (event.status == cf_batch_complete) {
      progress.completions.complete(finish(transfer.op, result, EIO, library_.judge(transfer.route)));
    } else if ((event.status & (cf_batch_cancelled | cf_batch_timeout)) != 0) {
      progress.completions.complete(try_again(transfer.op));
    } else {
      progress.completions.complete(finish(transfer.op, result < 0 ? result : -1, EIO, transfer.route));
    }
  }
  if (!any && count == 0) {
    // A status call that returns at once without anything must not spin.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return any;
}

void Batch::give_up(Progress& progress) {
  if (batches_.on.exchange(false)) {
    log(LogLevel::warning, "a cuFile batch stalled: it is cancelled, and no more batches are made");
  }
  library_.api().batch_cancel(handle_);
  const TimePoint end = Clock::now() + cancel_grace;
  while (progress.out > 0 && Clock::now() < end) collect(progress, look_again);
  if (progress.out > 0) handle_ = nullptr;  // leaked with what is still in it
}

}  // namespace penstock::cufile
