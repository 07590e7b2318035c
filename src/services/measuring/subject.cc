#include "services/measuring/subject.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace penstock::measuring {

Error stopped() {
  return {.code = Code::cancelled, .message = "interrupted"};
}

Result<Subject> make_subject(const std::string& path, const Options& options, Region memory, Access access) {
  Result<Context> context = Context::create(options);
  if (!context) return context.error();
  Result<Store> store = context->open(path, {.access = access});
  if (!store) return store.error();
  if (!memory.domain.host_accessible()) {
    if (Status ready = context->prepare(memory.domain); !ready) return std::move(ready).error();
  } else if (memory.domain == Domain::pinned()) {
    if (Status attached = context->attach(memory); !attached) return std::move(attached).error();
  }
  return Subject{std::move(*context), std::move(*store)};
}

Result<Report> move_front(Subject& subject, Direction direction, Region memory, const KeepGoing& keep_going) {
  const Range range{.store = &subject.store, .offset = 0, .memory = memory};
  Result<Ticket> ticket = subject.context.submit(direction, {&range, 1}, {.durable = direction == Direction::write});
  if (!ticket) return ticket.error();
  bool go_on = true;
  while (!ticket->wait_for(std::chrono::milliseconds(100))) {
    if (go_on && !keep_going()) {
      go_on = false;
      ticket->cancel();
    }
  }
  Report report = ticket->report();
  // Before all else: the memory is not the caller's again.
  if (report.outcome == Outcome::abandoned) return *report.error;
  if (!go_on || !keep_going()) return stopped();
  if (!report.ok()) return *report.error;
  return report;
}

Result<std::uint64_t> warm(const Front& front, const KeepGoing& keep_going) {
  std::vector<std::byte> window(mib);
  const double end = now() + front.seconds;
  std::uint64_t done = 0;
  while (done < front.size_bytes && (done < mib || now() < end)) {
    if (!keep_going()) return stopped();
    const std::size_t length = std::min<std::uint64_t>(window.size(), front.size_bytes - done);
    const ssize_t got = pread(front.fd, window.data(), length, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, "read what is measured");
    if (got == 0) break;
    if (front.on_bytes) front.on_bytes({window.data(), static_cast<std::size_t>(got)});
    done += static_cast<std::uint64_t>(got);
  }
  return done;
}

void evict(int fd) {
  static_cast<void>(fdatasync(fd));  // what is not written yet can't be evicted; a read-only mount has nothing to sync
  static_cast<void>(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
}

}  // namespace penstock::measuring
