#include "engines/modules.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "engine/module.h"

namespace penstock::engines {
namespace {

Error not_loaded(const std::string& path, const std::string& reason, std::string hint) {
  return {Code::engine_unavailable, 0, "the engine module " + path + " was not loaded: " + reason, std::move(hint)};
}

}  // namespace

Result<std::unique_ptr<engine::Engine>> load_module(const std::string& path) {
  // A name without a folder would be looked for where libraries are.
  if (path.find('/') == std::string::npos) {
    return not_loaded(path, "it is not a path", "give the path of the module, with its folder");
  }
  void* const object = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) {
    return not_loaded(path, ::dlerror(), "check the path, and that what the module needs is installed");
  }
  const auto* const module = static_cast<const engine::Module*>(::dlsym(object, engine::module_symbol));
  if (module == nullptr) return not_loaded(path, "it is not an engine module", "check the path");
  if (std::string_view(module->build) != PENSTOCK_BUILD_MARK) {
    return not_loaded(
        path,
        "it was built with another Penstock (" + std::string(module->build) + ", this is " + PENSTOCK_BUILD_MARK + ")",
        "build both from the same sources, with the same compiler and options");
  }
  return std::unique_ptr<engine::Engine>(module->make());
}

Status add_modules(engine::Table& table, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    auto engine = load_module(path);
    if (!engine) return std::move(engine).error();
    const std::string_view name = (*engine)->description().name;
    const bool is_known =
        std::any_of(table.begin(), table.end(), [&](const auto& one) { return one->description().name == name; });
    if (is_known) {
      return not_loaded(path, "there is an engine named " + std::string(name) + " already", "name each module once");
    }
    table.insert(table.empty() ? table.end() : std::prev(table.end()), std::move(*engine));
  }
  return {};
}

}  // namespace penstock::engines
