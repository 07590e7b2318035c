// Standard output as the destination of bytes, as in `penstock load --to -`.
#pragma once

#include <cstddef>
#include <span>

#include "deadline.h"
#include "penstock/result.h"

namespace penstock::cli {

// Takes standard output for bytes: what the tool says goes to standard error from now on.
class StandardOutput {
 public:
  static Result<StandardOutput> take();
  // Waits for a reader that has stopped reading until the deadline, or a signal.
  Status write(std::span<const std::byte> bytes, const Deadline& deadline) const;

 private:
  explicit StandardOutput(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;  // open until the process ends
};

}  // namespace penstock::cli
