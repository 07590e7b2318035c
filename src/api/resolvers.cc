#include "api/resolvers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/callback.h"
#include "core/uri.h"

namespace penstock {

Status Resolvers::add(std::string scheme, Resolver resolve, std::span<const std::string_view> others) {
  const auto refused = [&](const std::string& why) {
    return Error{Code::invalid_argument, 0, "the scheme " + scheme + ": " + why,
                 "two or more of a-z, 0-9, + and -, a letter first, that nothing else serves"};
  };
  if (!resolve) return refused("no function for it");
  const std::string_view own = scheme;
  const auto uri = core::parse_uri(scheme + ":x", {&own, 1});
  if (!uri || uri->scheme != scheme) return refused("it can't be one");
  if (std::ranges::find(others, own) != others.end()) return refused("an engine serves it");
  const std::scoped_lock lock(mutex_);
  if (by_scheme_.contains(scheme)) return refused("a function serves it already");
  by_scheme_.emplace(std::move(scheme), std::move(resolve));
  return {};
}

std::optional<Result<Store>> Resolvers::open(std::string_view name, const OpenOptions& options) const {
  Resolver resolve;
  std::string rest;
  {
    const std::scoped_lock lock(mutex_);
    if (by_scheme_.empty()) return std::nullopt;
    std::vector<std::string_view> schemes;
    for (const auto& [scheme, function] : by_scheme_) schemes.push_back(scheme);
    auto uri = core::parse_uri(name, schemes);
    const auto found = uri ? by_scheme_.find(uri->scheme) : by_scheme_.end();
    if (found == by_scheme_.end()) return std::nullopt;
    resolve = found->second;
    rest = std::move(uri->name);
  }
  return call_back("the function of Context::add_scheme", resolve, std::string_view(rest), options);
}

}  // namespace penstock
