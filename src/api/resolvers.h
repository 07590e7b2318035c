// Resolvers: the schemes of a Context that are not an engine's. A function turns a name into a store or a path, before
// an engine is chosen.
//
// Thread safety: any thread. Lifetime: its Context's.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "penstock/context.h"

namespace penstock {

class Resolvers {
 public:
  // Code::invalid_argument for what is no scheme, or one that is taken: by an engine (`others`), or here.
  Status add(std::string scheme, Resolver resolve, std::span<const std::string_view> others);
  Status add(std::string scheme, Locator locate, std::span<const std::string_view> others);
  // What the function says about the name; nothing if no function serves its scheme, or one that tells paths.
  std::optional<Result<Store>> open(std::string_view name, const OpenOptions& options) const;
  // Likewise, if it is one that tells paths. A name of Tiers that do not serve this Context is an error.
  std::optional<Result<Location>> locate(std::string_view name, const OpenOptions& options) const;

 private:
  using Function = std::variant<Resolver, Locator>;
  // Which function serves a name, and what follows the scheme, as it was written.
  struct Served {
    std::string_view scheme;
    Function function;
    std::string_view rest;
  };
  Status insert(std::string scheme, Function function, std::span<const std::string_view> others);
  std::optional<Served> find(std::string_view name) const;

  mutable std::mutex mutex_;  // not held while a function is called: it may open other stores
  std::map<std::string, Function, std::less<>> by_scheme_;
};

}  // namespace penstock
