// Built instead of the engine where liburing was not found.
#include "engines/uring/engine.h"

namespace penstock::uring {
namespace {

class Engine : public engine::Engine {
 public:
  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {false, absent().message, absent().hint}; }
  Result<std::unique_ptr<engine::Store>> open(const std::string&, const OpenOptions&) override { return absent(); }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions&) override { return absent(); }

 private:
  static Error absent() {
    return {Code::engine_unavailable, 0, "this build has no io_uring: liburing was missing when it was built",
            "install liburing (liburing-dev) and build again"};
  }

  const engine::Description description_{
      .name = "uring",
      .summary = "files and block devices through io_uring (not in this build)",
      .schemes = {"file"},
  };
};

}  // namespace

std::unique_ptr<engine::Engine> make_engine(const Settings&) {
  return std::make_unique<Engine>();
}

}  // namespace penstock::uring
