#include "report_file.h"

#include <cstdlib>
#include <filesystem>

namespace penstock::cli {

Result<ReportFile> ReportFile::create(const std::string& path) {
  if (path == "-") {
    return Error{Code::invalid_argument, 0, "\"-\": this can't go to standard output, which tells how it went",
                 "give the name of a file (\"./-\" is one)"};
  }
  // The engine that the environment names is meant for what is reported on, and may not even exist.
  const char* wanted = ::secure_getenv("PENSTOCK_ENGINE");
  const std::string engine = wanted != nullptr ? wanted : "";
  unsetenv("PENSTOCK_ENGINE");
  Result<Context> context = Context::create({.lanes = 1});
  if (!engine.empty()) setenv("PENSTOCK_ENGINE", engine.c_str(), 1);
  if (!context.ok()) return context.error();
  // Absolute, it is a path whatever it looks like.
  std::error_code failed;
  Result<Store> store = context->open(std::filesystem::absolute(path, failed).string(), {.access = Access::replace});
  if (!store.ok()) return store.error();
  return ReportFile(std::move(*context), std::move(*store));
}

Status ReportFile::write(std::string text) {
  const Report report = context_.write(store_, 0, Region::host(text.data(), text.size()));
  if (!report.ok()) return *report.error;
  return store_.commit(false);
}

}  // namespace penstock::cli
