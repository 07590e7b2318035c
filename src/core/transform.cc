#include "penstock/transform.h"

namespace penstock {

Status Transform::by_gpu(const Piece&, const OnGpu&) const {
  return Error{Code::unsupported, 0, "the transform has no kernels", "is_for must say so"};
}

Error Transform::failure_of(std::uint64_t tag, std::uint32_t status) const {
  return {
      Code::io_error, 0,
      "the stored bytes of piece " + std::to_string(tag) + " can't be transformed: status " + std::to_string(status),
      "it may be damaged: compare its checksum"};
}

}  // namespace penstock
