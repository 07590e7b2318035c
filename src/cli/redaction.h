// Redaction: takes the names of people, machines and files out of what is written to be sent to others.
//
// Thread safety: functions. Lifetime: values.
#pragma once

#include <string>
#include <vector>

#include "output.h"

namespace penstock::cli {

// A text that must not be told, and what stands in its place.
struct Secret {
  std::string text, instead;
};

// Of this machine and its user: names of both, and the home folder.
std::vector<Secret> personal_names();

// Takes secrets out of every text, and whatever looks like a path of one's own, a UUID, or an address of a network.
// A secret counts as a word of its own only: a machine named "ring" must not spoil "io_uring".
void scrub(Json& value, std::vector<Secret> secrets);

// Of what `doctor --json` prints: the name of the store, where it is mounted, and options of the mount that may name
// somebody.
void redact(Json& diagnosis);

}  // namespace penstock::cli
