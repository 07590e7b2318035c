// Where gathered bytes go: to a file, which is replaced once they are complete, or to standard output.
#pragma once

#include <optional>
#include <string>

#include "penstock/context.h"
#include "standard_output.h"

namespace penstock::cli {

class BytesOut {
 public:
  // As --out names it. "-" takes standard output from now on; empty: nowhere.
  static Result<BytesOut> to(std::string name);
  // Memory of any domain. Nothing is left of a file that was interrupted, and the old one stays.
  Status write(const Context& context, Region memory) const;

 private:
  BytesOut(std::string name, std::optional<StandardOutput> standard) : name_(std::move(name)), standard_(standard) {}

  std::string name_;
  std::optional<StandardOutput> standard_;
};

}  // namespace penstock::cli
