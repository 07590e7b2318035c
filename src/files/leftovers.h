// The names and locks of unfinished files, by which leftovers are known (penstock/leftovers.h).
//
// Thread safety: functions.
#pragma once

#include <string>
#include <string_view>

namespace penstock::files {

// A name that nothing else has for a file that will replace `target`: ".NAME.0123456789abcdef.part".
std::string temporary_name(const std::string& target);
// The same for a file that can't be locked. It is never taken for a leftover: nobody could tell.
std::string unlockable_name(const std::string& temporary);
bool is_temporary_name(std::string_view name);

// The lock of an open file, for as long as its description is open, or until it is unlocked.
enum class Lock {
  held,
  busy,        // another has it
  impossible,  // the file system has none, or its server does not answer
};
Lock try_lock(int fd);

// Whether `name` in the folder means the open file.
bool is_name_of(int folder, const std::string& name, int fd);

// Removes leftovers of earlier replacements of `target`, so that their room is free again. What can't be removed stays.
void remove_leftovers_of(int folder, const std::string& target);

}  // namespace penstock::files
