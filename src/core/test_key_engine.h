// An engine for tests of what attaches memory.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "engine/engine.h"

namespace penstock::core {

// Gives keys and remembers which are in use; refuses memory larger than it likes.
class KeyEngine : public engine::Engine {
 public:
  explicit KeyEngine(bool reaches_device = false) : description_{.name = "keys", .reaches_device = reaches_device} {}

  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {.available = true}; }
  Result<std::unique_ptr<engine::Store>> open(const std::string&, const OpenOptions&) override {
    return Error{Code::unsupported, 0, "not here", ""};
  }
  Result<engine::MemoryKey> attach(Region memory) override {
    if (memory.size_bytes > most_bytes) return Error{Code::out_of_memory, 0, "too large", ""};
    keys.insert(++last_);
    return engine::MemoryKey{last_};
  }
  void detach(engine::MemoryKey key) override { EXPECT_EQ(keys.erase(key.id), 1U); }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions&) override {
    return Error{Code::unsupported, 0, "not here", ""};
  }

  std::set<std::uint32_t> keys;
  std::size_t most_bytes = SIZE_MAX;

 private:
  const engine::Description description_;
  std::uint32_t last_ = 0;
};

}  // namespace penstock::core
