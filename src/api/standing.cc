#include "penstock/standing.h"

#include <utility>

#include "client/backend.h"

namespace penstock {

namespace {

Error none() {
  return {Code::invalid_argument, 0, "this Standing is empty", "use one that stand_by returned"};
}

}  // namespace

Standing::Standing() = default;
Standing::Standing(std::shared_ptr<client::StandingRequest> request) : request_(std::move(request)) {}
Standing::Standing(Standing&&) noexcept = default;
Standing& Standing::operator=(Standing&& other) noexcept {
  if (request_ && request_ != other.request_) request_->end();
  request_ = std::move(other.request_);
  return *this;
}
Standing::~Standing() {
  if (request_) request_->end();
}

Status Standing::enqueue(CudaStream stream) {
  if (!request_) return none();
  return request_->enqueue(stream.handle);
}

std::uint64_t Standing::begin_word() const {
  return request_ ? request_->begin_word() : 0;
}
std::uint64_t Standing::end_word() const {
  return request_ ? request_->end_word() : 0;
}
std::uint64_t Standing::rounds() const {
  return request_ ? request_->rounds() : 0;
}

Report Standing::report() const {
  if (request_) return request_->report();
  Report report;
  report.outcome = Outcome::failed;
  report.error = none();
  return report;
}

}  // namespace penstock
