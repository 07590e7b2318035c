// Measurement: loads the front of a store with one set of options and another, in turns, out of the page cache and from
// the device.
//
// Thread safety: one thread. Lifetime: owns the memory that is loaded into.
#pragma once

#include <memory>

#include "services/measuring/subject.h"
#include "services/tuning/search.h"

namespace penstock::tuning {

using measuring::Subject;

class Measurement {
 public:
  static Result<std::unique_ptr<Measurement>> create(const TuningSearch& search);
  ~Measurement();
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  Result<Comparison> compare(const Options& before, const Options& after, int rounds);
  std::uint64_t size_bytes() const { return memory_.size_bytes(); }
  const Machine& machine() const { return owner_.machine(); }

 private:
  enum class State { cached, cold };

  Measurement(const TuningSearch& search, int fd, Context owner);
  Result<Subject> make_subject(const Options& options);
  // Reads into the page cache, for a limited time; says how many bytes of the front are there then.
  Result<std::uint64_t> warm(std::uint64_t size_bytes, double seconds);
  Result<Report> load(Subject& subject);
  // The speed of one round; nothing where the bytes were not where they should have been.
  Result<std::optional<double>> round(Subject& subject, State state);
  Result<Rounds> take_turns(Subject& before, Subject& after, State state, int count);

  const TuningSearch& search_;
  int fd_;
  Context owner_;
  Buffer memory_;
  bool measurable_[2] = {true, true};  // by State
};

}  // namespace penstock::tuning
