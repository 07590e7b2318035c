// The Context as a program meets it: with files in a folder that vanishes, made from options that a test may change.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "penstock/penstock.h"
#include "support/support.h"

namespace penstock::test {

inline std::uint64_t bytes_by(const Report& report, Route route) {
  return report.routes[static_cast<std::size_t>(route)];
}

inline std::string message_of(const Report& report) {
  return report.error ? report.error->message : "no error";
}

class ContextTest : public testing::Test {
 protected:
  static constexpr std::size_t size_bytes = 4 << 20;

  Context make_context() { return Context::create(options_).value(); }
  std::string make_file(const std::string& name, std::size_t size = size_bytes) const {
    write_file(folder_.path(name), content(1, 0, size));
    return folder_.path(name);
  }
  static Ticket submit_read(const Context& context, const Store& store, Region memory,
                            const RequestOptions& options = {}) {
    const Range range{&store, 0, memory};
    return context.submit(Direction::read, {&range, 1}, options).value();
  }

  Options options_{.lanes = 2, .deadlines = patient};
  TemporaryFolder folder_;
};

}  // namespace penstock::test
