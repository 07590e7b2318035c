// An engine for tests of what attaches memory.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace penstock::core {

// Knows memory, of which it counts how much is attached; refuses what is larger than it likes.
class KeyEngine : public engine::Engine, private engine::Memory {
 public:
  using Reach = engine::HostReach;
  explicit KeyEngine(Reach host = Reach::any, bool reaches_device = false)
      : description_{.name = "keys", .host = host, .reaches_device = reaches_device} {}

  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {.available = true}; }
  Result<std::unique_ptr<engine::Store>> open(const std::string&, const OpenOptions&) override {
    return Error{Code::unsupported, 0, "not here", ""};
  }
  engine::Memory* memory() override { return this; }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions&) override {
    return Error{Code::unsupported, 0, "not here", ""};
  }

  std::set<const engine::Attached*> attached;
  std::size_t most_bytes = SIZE_MAX;

 private:
  class Known : public engine::Attached {
   public:
    explicit Known(KeyEngine& engine) : engine_(engine) { engine_.attached.insert(this); }
    ~Known() override { EXPECT_EQ(engine_.attached.erase(this), 1U); }

   private:
    KeyEngine& engine_;
  };

  Result<std::unique_ptr<engine::Attached>> attach(Region memory) override {
    if (memory.size_bytes > most_bytes) return Error{Code::out_of_memory, 0, "too large", ""};
    return std::unique_ptr<engine::Attached>(std::make_unique<Known>(*this));
  }
  Result<Allocated> allocate(std::size_t bytes) override {
    if (bytes > most_bytes) return Error{Code::out_of_memory, 0, "too large", ""};
    own_.resize(bytes);
    return Allocated{Region::host(own_.data(), bytes), std::make_unique<Known>(*this)};
  }

  const engine::Description description_;
  std::vector<std::byte> own_;
};

}  // namespace penstock::core
