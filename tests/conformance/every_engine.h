// The fixtures of the conformance tests: a Context of one engine, and stores that are made and looked at past it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/context_builder.h"
#include "conformance/engine_cases.h"
#include "support/support.h"

namespace penstock::test {

class EveryEngine : public testing::TestWithParam<EngineCase> {
 protected:
  void SetUp() override {
    const auto probe = GetParam().make()->probe();
    if (!probe.available) GTEST_SKIP() << probe.reason;
  }

  Context make_context(const Options& options = {}) const {
    engine::Table table;
    table.push_back(GetParam().make());
    return ContextBuilder::build(std::move(table), options).value();
  }

  // A store of `size` bytes of content `seed`; the name that opens it.
  std::string make_store(const std::string& name, std::size_t size, std::uint64_t seed = 1) const {
    stores_.write(folder_.path(name), content(seed, 0, size));
    return stores_.scheme + engine_name(name);
  }
  // A store of zeros; the name that opens it, or nothing if there can't be one of this size here.
  std::optional<std::string> make_zeros(const std::string& name, std::uint64_t size) const {
    if (!stores_.write_zeros(folder_.path(name), size)) return std::nullopt;
    return stores_.scheme + engine_name(name);
  }
  // What the engine knows a store by.
  std::string engine_name(const std::string& name) const { return stores_.name_of(folder_.path(name)); }
  const OpenOptions& to_write() const { return stores_.to_write; }
  bool are_files() const { return stores_.are_files; }
  std::vector<std::byte> bytes_in(const std::string& name) const { return stores_.read(folder_.path(name)); }

  // In or out of the page cache; a store that is no file has none.
  void make_cold(const std::string& name) const {
    if (stores_.are_files) evict(folder_.path(name));
  }
  void make_cached(const std::string& name) const {
    if (stores_.are_files) warm(folder_.path(name));
  }

  TemporaryFolder folder_;

 private:
  const Stores stores_ = GetParam().stores;
};

// For what only files do: they grow, shrink, are replaced, and sit in the page cache.
class EveryFileEngine : public EveryEngine {
 protected:
  std::string make_file(const std::string& name, std::size_t size) const {
    write_file(folder_.path(name), content(1, 0, size));
    return folder_.path(name);
  }
};

inline Options small_lanes() {
  return {.lanes = 2, .deadlines = patient};
}

}  // namespace penstock::test
