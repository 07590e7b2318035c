#include "engines/made/engine.h"

#include <algorithm>
#include <utility>

#include "engines/made/queue.h"

namespace penstock::made {
namespace {

class Engine : public engine::Engine {
 public:
  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {.available = true}; }
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions&) override {
    return Error{Code::unsupported, 0, name + ": a recipe has no name", "open its Recipe"};
  }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(options.depth));
  }

 private:
  const engine::Description description_{
      .name = engine_name,
      .summary = "bytes that functions make",
      .schemes = {},
      .inline_queue = true,
  };
};

}  // namespace

std::unique_ptr<engine::Engine> make_engine() {
  return std::make_unique<Engine>();
}

Result<std::unique_ptr<engine::Store>> make_store(Recipe recipe) {
  if (!recipe.make) {
    return Error{Code::invalid_argument, 0, "the Recipe " + recipe.name + " has no function", "set Recipe::make"};
  }
  StoreInfo info;
  info.name = recipe.name;
  info.kind = StoreKind::made;
  info.locality = Locality::memory;
  info.size_bytes = recipe.size_bytes;
  info.block_bytes = 1;
  return std::unique_ptr<engine::Store>(std::make_unique<Store>(std::move(info), std::move(recipe.make)));
}

}  // namespace penstock::made
