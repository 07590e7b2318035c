// What to do about a file that can't be opened.
//
// Thread safety: a function.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>

#include "penstock/store.h"

namespace penstock {

// Empty where there is nothing to say, and for what system_error says by itself.
inline std::string open_hint(int error, const std::string& name, Access access) {
  const bool write = access != Access::read;
  if (access == Access::create && (error == EACCES || error == EPERM || error == EROFS) &&
      ::access(name.c_str(), F_OK) != 0) {
    return error == EROFS ? "the file system is mounted read-only: remount it, or write elsewhere"
                          : "this user may not make files in that folder: check its permissions";
  }
  switch (error) {
    case ENOENT:
      return access == Access::create ? "create the folder first" : "check the name";
    case ENOTDIR:
      return "check the name";
    case EACCES:
    case EPERM:
      return write ? "this user may not write to it: check its permissions, or open it for reading"
                   : "this user may not read it: check its permissions and those of the folders above it";
    case EROFS:
      return "the file system is mounted read-only: remount it, write elsewhere, or open it for reading";
    case ETXTBSY:
      return "end the program that runs from this file first";
    case ENODEV:
    case ENXIO:
      return "the device is not there: check that its driver is loaded and its medium present";
    default:
      return {};
  }
}

}  // namespace penstock
