#include "api/resolvers.h"

#include <algorithm>
#include <utility>

#include "base/callback.h"
#include "core/uri.h"

namespace penstock {
namespace {

Error refused(const std::string& scheme, const std::string& why) {
  return {Code::invalid_argument, 0, "the scheme " + scheme + ": " + why,
          "two or more of a-z, 0-9, + and -, a letter first, that no engine serves"};
}

Error no_function(const std::string& scheme) {
  return {Code::invalid_argument, 0, "the scheme " + scheme + ": no function for it",
          "give a function that opens its names"};
}

Error taken(const std::string& scheme) {
  return {Code::invalid_argument, 0, "this Context has a function for " + scheme + ": already",
          "it stays as long as the Context: make another Context, or choose another scheme"};
}

// A name of Tiers is never meant as a file of that name, least of all one that is written.
Error not_served(std::string_view name) {
  return {Code::not_found, 0, std::string(name) + ": this Context does not know the names of tiers",
          "call serve() of Tiers first, and again in a forked child; a file of this name is ./" + std::string(name)};
}

}  // namespace

Status Resolvers::add(std::string scheme, Resolver resolve, std::span<const std::string_view> others) {
  if (!resolve) return no_function(scheme);
  return insert(std::move(scheme), std::move(resolve), others);
}

Status Resolvers::add(std::string scheme, Locator locate, std::span<const std::string_view> others) {
  if (!locate) return no_function(scheme);
  return insert(std::move(scheme), std::move(locate), others);
}

Status Resolvers::insert(std::string scheme, Function function, std::span<const std::string_view> others) {
  const std::string_view own = scheme;
  const auto uri = core::parse_uri(scheme + ":x", {&own, 1});
  if (!uri || uri->scheme != scheme) return refused(scheme, "it can't be one");
  if (std::ranges::find(others, own) != others.end()) return refused(scheme, "an engine serves it");
  const std::scoped_lock lock(mutex_);
  if (by_scheme_.contains(scheme)) return taken(scheme);
  by_scheme_.emplace(std::move(scheme), std::move(function));
  return {};
}

std::optional<Resolvers::Served> Resolvers::find(std::string_view name) const {
  const std::size_t colon = name.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::scoped_lock lock(mutex_);
  const auto found = by_scheme_.find(name.substr(0, colon));
  if (found == by_scheme_.end()) return std::nullopt;
  std::string_view rest = name.substr(colon + 1);
  if (rest.starts_with("//")) rest.remove_prefix(2);
  return Served{found->first, found->second, rest};
}

std::optional<Result<Store>> Resolvers::open(std::string_view name, const OpenOptions& options) const {
  const auto served = find(name);
  const auto* resolve = served ? std::get_if<Resolver>(&served->function) : nullptr;
  if (resolve == nullptr) return std::nullopt;
  const auto uri = core::parse_uri(name, {&served->scheme, 1});
  if (!uri) return uri.error();
  return call_back("the function of Context::add_scheme", *resolve, std::string_view(uri->name), options);
}

std::optional<Result<Location>> Resolvers::locate(std::string_view name, const OpenOptions& options) const {
  const auto served = find(name);
  const bool is_unit = name.starts_with("tier:");
  if (is_unit && (name == "tier:" || (served && served->rest.empty()))) {
    return Error{Code::invalid_argument, 0, "tier: names no unit", "write it as tier:NAME"};
  }
  if (!served && is_unit) return not_served(name);
  const auto* locate = served ? std::get_if<Locator>(&served->function) : nullptr;
  if (locate == nullptr) return std::nullopt;
  return call_back("the function of Context::redirect", *locate, served->rest, options);
}

}  // namespace penstock
