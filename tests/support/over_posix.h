// For tests: the posix engine, for others to change what they open.
#pragma once

#include <memory>
#include <string>

#include "engines/posix/engine.h"

namespace penstock::test {

class OverPosix : public engine::Engine {
 public:
  const engine::Description& description() const override { return inner_->description(); }
  engine::Probe probe() const override { return inner_->probe(); }
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    return inner_->open(name, options);
  }
  engine::Memory* memory() override { return inner_->memory(); }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    return inner_->make_queue(options);
  }

 private:
  const std::unique_ptr<engine::Engine> inner_ = posix::make_engine();
};

}  // namespace penstock::test
