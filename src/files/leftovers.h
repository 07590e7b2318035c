// The names and locks of unfinished files, by which leftovers are known (penstock/leftovers.h).
//
// Thread safety: functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::files {

// Names of a file that will replace `target`: ".NAME.0123456789abcdef.part". Where locks prove something a file has the
// first of the numbered ones that is free, so that what dead writers left is found without reading the folder. The
// others, for more writers of one file than that, or where locks prove nothing, are random: nothing else has them.
inline constexpr std::uint32_t numbered_names = 8;
std::string numbered_name(const std::string& target, std::uint32_t number);
std::string random_name(const std::string& target);
// The same for a file that can't be locked. It is never taken for a leftover: nobody could tell.
std::string unlockable_name(const std::string& temporary);
bool is_temporary_name(std::string_view name);

// Whether a lock that can be had in the folder is had by nobody else, on other machines either.
bool locks_prove(int folder);

// The lock of an open file, for as long as its description is open, or until it is unlocked.
enum class Lock {
  held,
  busy,        // another has it
  impossible,  // the file system has none, or its server does not answer
};
Lock try_lock(int fd);

// Whether `name` in the folder means the open file.
bool is_name_of(int folder, const std::string& name, int fd);

// Removes leftovers of earlier replacements of `target` that have numbered names, so that their room is free again.
// What can't be removed stays. REQUIRES: locks_prove(folder).
void remove_leftovers_of(int folder, const std::string& target);

}  // namespace penstock::files
