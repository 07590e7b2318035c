// ReportFile: a file that a command writes besides what it prints. It is made before the work begins, so that a wrong
// name is known then, and takes its name when it is complete: whatever goes wrong, nothing half-written is left.
#pragma once

#include <string>

#include "penstock/context.h"

namespace penstock::cli {

class ReportFile {
 public:
  static Result<ReportFile> create(const std::string& path);
  Status write(std::string text);

 private:
  ReportFile(Context context, Store store) : context_(std::move(context)), store_(std::move(store)) {}
  Context context_;
  Store store_;
};

}  // namespace penstock::cli
