// Relaxed: a function of the CUDA driver, or of a library that calls it, each call of which is made in the relaxed
// capture mode. The tables that the library calls through hold nothing else, so no call can disturb a graph that the
// program is capturing meanwhile.
//
// Thread safety: as the function's. Lifetime: as the function's; null until one is looked up.
#pragma once

#include <cstddef>

#include "cuda/api.h"
#include "penstock/capture_mode.h"

namespace penstock::cuda {

template <typename Signature>
class Relaxed;

template <typename Answer, typename... Arguments>
class Relaxed<Answer(Arguments...)> {
 public:
  using Function = Answer (*)(Arguments...);

  Relaxed() = default;
  explicit Relaxed(Function function) : function_(function) {}

  Answer operator()(Arguments... arguments) const {
    const RelaxedCaptureMode mode;
    return function_(arguments...);
  }

  Function plain() const { return function_; }
  explicit operator bool() const { return function_ != nullptr; }
  bool operator==(std::nullptr_t) const { return function_ == nullptr; }

 private:
  Function function_ = nullptr;
};

// As Api.
struct RelaxedApi {
#define PENSTOCK_CUDA_MEMBER(member, symbol, arguments) Relaxed<CuResult arguments> member;
  PENSTOCK_CUDA_REQUIRED(PENSTOCK_CUDA_MEMBER)
  PENSTOCK_CUDA_OPTIONAL(PENSTOCK_CUDA_MEMBER)
#undef PENSTOCK_CUDA_MEMBER
};

}  // namespace penstock::cuda
