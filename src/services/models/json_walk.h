// Walks over JSON (RFC 8259) without building it: a header of 100 MB costs what its visitor keeps, and the keys of the
// objects that are open. Refuses what readers disagree about (a key twice, text that is not UTF-8) and what only an
// attack needs (depth). Headers of models with many tensors are megabytes, and nothing can be read before they are: a
// general parser takes longer over them than the tensors take.
//
// Thread safety: a function of its arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/result.h"

namespace penstock::models {

struct JsonEvent {
  enum class Kind : std::uint8_t {
    object,      // begins
    object_end,  // `path` is the object's own again
    array,       // begins
    string,
    number,  // whole, from 0 to 2^64 - 1
    other,   // any other number, a boolean, or null
  };
  // What it points to lives as long as the walk.
  Kind kind;
  std::span<const std::string_view> path;  // keys, from the outermost object's to the value's own
  bool in_array;                           // the value is an element; the path is the array's
  std::string_view text;
  std::uint64_t number;
};
// What is wrong with a value, to end the walk; nothing to go on.
using JsonProblem = std::optional<std::string>;
using JsonVisitor = std::function<JsonProblem(const JsonEvent&)>;

Status walk_json(std::string_view json, const JsonVisitor& visit);

}  // namespace penstock::models
