// Resolvers: the schemes of a Context that are not an engine's. A function turns a name into a store, before an engine
// is chosen.
//
// Thread safety: any thread. Lifetime: its Context's.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/context.h"

namespace penstock {

class Resolvers {
 public:
  // Code::invalid_argument for what is no scheme, or one that is taken: by an engine (`others`), or here.
  Status add(std::string scheme, Resolver resolve, std::span<const std::string_view> others);
  // What the function says about the name; nothing if no function serves its scheme.
  std::optional<Result<Store>> open(std::string_view name, const OpenOptions& options) const;

 private:
  mutable std::mutex mutex_;  // not held while a function is called: it may open other stores
  std::map<std::string, Resolver, std::less<>> by_scheme_;
};

}  // namespace penstock
