// Session: what the copies of a Context share: its backend, and the schemes that functions of the program serve.
//
// Thread safety: any thread. Lifetime: that of the last Context that has it.
#pragma once

#include <memory>
#include <utility>

#include "api/resolvers.h"
#include "client/backend.h"

namespace penstock::client {

class Session {
 public:
  explicit Session(std::shared_ptr<Backend> given) : backend(std::move(given)) {}

  const std::shared_ptr<Backend> backend;
  Resolvers resolvers;
};

}  // namespace penstock::client
