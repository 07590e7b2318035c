// The made engine: stores whose bytes a function makes (penstock/recipe.h). They have no names: who has the function
// opens them.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "penstock/recipe.h"

namespace penstock::made {

inline constexpr std::string_view engine_name = "made";

std::unique_ptr<engine::Engine> make_engine();
Result<std::unique_ptr<engine::Store>> make_store(Recipe recipe);

}  // namespace penstock::made
