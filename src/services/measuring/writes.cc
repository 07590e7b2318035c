// Writes: of the memory that was loaded, to a file that may be overwritten. Both sides find room that is reserved, and
// both are synced within the time.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "services/measuring/races.h"

namespace penstock::measuring {

namespace {

// Two descriptors of the file that is written: one to make room and to read back with, one for plain direct writes.
class Target {
 public:
  static Result<std::shared_ptr<Target>> open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return system_error(errno, "open " + path + " for writing");
    const int direct_fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_DIRECT);
    return std::shared_ptr<Target>(new Target(fd, direct_fd));
  }
  ~Target() {
    close(fd_);
    if (direct_fd_ >= 0) close(direct_fd_);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  int fd() const { return fd_; }
  bool direct() const { return direct_fd_ >= 0; }
  int plain_fd() const { return direct() ? direct_fd_ : fd_; }

  // Empties the file and reserves its room, so that both sides do the same work.
  Status reserve(std::uint64_t size_bytes) const {
    if (ftruncate(fd_, 0) != 0) return system_error(errno, "empty the file that is written");
    const int failed = posix_fallocate(fd_, 0, static_cast<off_t>(size_bytes));
    if (failed != 0) return system_error(failed, "reserve room to write to");
    if (fsync(fd_) != 0) return system_error(errno, "sync the file that is written");
    evict(fd_);
    return {};
  }

 private:
  Target(int fd, int direct_fd) : fd_(fd), direct_fd_(direct_fd) {}
  int fd_, direct_fd_;
};
using TargetPointer = std::shared_ptr<Target>;  // shared: by the contenders, which are std::functions

// Writes all of it over and over, each time to fresh room.
Result<Sample> write_for(Session& session, const Target& target, double seconds,
                         const std::function<Result<Sample>()>& write_once) {
  Sample sample;
  while (sample.seconds < seconds) {
    if (Status reserved = target.reserve(session.size_bytes()); !reserved) return std::move(reserved).error();
    Result<Sample> part = write_once();
    if (!part) return part;
    sample.bytes += part->bytes;
    sample.seconds += part->seconds;
    sample.cpu_seconds += part->cpu_seconds;
  }
  return sample;
}

Contender make_plain(Session& session, const TargetPointer& target, PlainSetting setting) {
  setting.chunk_bytes = std::min(setting.chunk_bytes, session.size_bytes());
  const PlainJob job{
      .fd = target->plain_fd(),
      .direction = Direction::write,
      .size_bytes = session.size_bytes(),
      .setting = setting,
      .memory = session.on_gpu() ? session.buffers() : std::span(session.memory().data, session.size_bytes())};
  return {.row = {.name = target->direct() ? "plain direct writes" : "plain writes",
                  .setting = setting.text(),
                  .plain = true},
          .round = [&session, target, job](double seconds) {
            return write_for(session, *target, seconds, [&] { return run_plain(job, session.job().keep_going); });
          }};
}

Result<Contender> make_writer(Session& session, const TargetPointer& target, const std::string& engine) {
  const std::uint64_t before = own_memory_bytes();
  Options options;
  options.engine = engine;
  if (Status reserved = target->reserve(session.size_bytes()); !reserved) return std::move(reserved).error();
  Result<Subject> made = make_subject(session.job().write_path, options, session.memory(), Access::write);
  if (!made) return made.error();
  const auto subject = std::make_shared<Subject>(std::move(*made));
  const Result<Report> report = move_front(*subject, Direction::write, session.memory(), session.job().keep_going);
  if (!report) return report.error();
  const Result<bool> right = session.file_is_right(target->fd());
  if (!right) return right.error();
  const std::uint64_t after = own_memory_bytes();
  const auto write_once = [&session, subject]() -> Result<Sample> {
    const double cpu = cpu_seconds();
    const Result<Report> written = move_front(*subject, Direction::write, session.memory(), session.job().keep_going);
    if (!written) return written.error();
    return Sample{written->bytes, written->seconds, cpu_seconds() - cpu};
  };
  return Contender{.row = {.name = engine + ", auto",
                           .pinned_bytes = subject->context.statistics().pinned_bytes,
                           .memory_bytes = after - std::min(before, after),
                           .routes = report->routes,
                           .reason = report->reason,
                           .bytes_right = *right},
                   .round = [&session, target, write_once](double seconds) {
                     return write_for(session, *target, seconds, write_once);
                   }};
}

Result<Contender> best_plain(Session& session, const TargetPointer& target, double seconds) {
  std::optional<Contender> best;
  double best_speed = 0;
  for (const PlainSetting setting :
       {PlainSetting{4, mib}, PlainSetting{16, mib}, PlainSetting{16, largest_chunk_bytes}}) {
    session.say("plain writes with " + setting.text());
    Contender contender = make_plain(session, target, setting);
    const Result<Sample> sample = contender.round(seconds / 3);
    if (!sample) return sample.error();
    const double speed = static_cast<double>(sample->bytes) / sample->seconds;
    if (speed > best_speed) best = std::move(contender);
    best_speed = std::max(speed, best_speed);
  }
  return std::move(*best);
}

}  // namespace

Result<Race> race_writes(Session& session, double seconds) {
  const Result<TargetPointer> target = Target::open(session.job().write_path);
  if (!target) return target.error();
  // What is written is what was loaded: its checksum is known.
  Result<Subject> source = make_subject(session.job().path, {}, session.memory());
  if (!source) return source.error();
  if (auto loaded = move_front(*source, Direction::read, session.memory(), session.job().keep_going); !loaded) {
    return loaded.error();
  }
  const double start = now();
  Result<Contender> yardstick = best_plain(session, *target, seconds * 0.15);
  if (!yardstick) return yardstick.error();
  std::vector<Contender> contenders{std::move(*yardstick)};
  std::vector<LeftOut> left_out;
  for (const EngineInfo& engine : session.owner().engines()) {
    if (!engine.available) {
      left_out.push_back({engine.name, engine.reason});
      continue;
    }
    session.say("written, checking the bytes of " + engine.name);
    Result<Contender> contender = make_writer(session, *target, engine.name);
    if (!contender && contender.error().code == Code::cancelled) return contender.error();
    if (contender) {
      contenders.push_back(std::move(*contender));
    } else {
      left_out.push_back({engine.name, contender.error().message});
    }
  }
  const double left = std::max(seconds - (now() - start), seconds / 4);
  Result<Race> race = run_race(RaceState::written, std::move(contenders), {.seconds = left},
                               [&](const std::string& what) { session.say(what); });
  if (race) race->left_out.insert(race->left_out.end(), left_out.begin(), left_out.end());
  return race;
}

}  // namespace penstock::measuring
