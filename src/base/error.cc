#include "penstock/error.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>

namespace penstock {
namespace {

// Indexed by Code.
constexpr std::array<std::string_view, 32> code_names = {
    "ok",        "invalid_argument", "not_found",    "permission_denied", "is_directory",   "out_of_range",
    "read_only", "in_use",           "no_space",     "changed",           "truncated",      "io_error",
    "corrupted", "not_durable",      "unsupported",  "unknown_scheme",    "unknown_engine", "engine_unavailable",
    "no_route",  "out_of_memory",    "over_budget",  "too_many_files",    "timed_out",      "cancelled",
    "abandoned", "no_device",        "device_error", "device_lost",       "would_deadlock", "would_block",
    "closed",    "internal",
};
static_assert(code_names.size() == static_cast<std::size_t>(Code::internal) + 1);

}  // namespace

std::string_view code_name(Code code) {
  const auto index = static_cast<std::size_t>(code);
  return index < code_names.size() ? code_names[index] : code_names.back();
}

Code code_from_name(std::string_view name) {
  for (std::size_t index = 0; index < code_names.size(); ++index) {
    if (code_names[index] == name) return static_cast<Code>(index);
  }
  return Code::internal;
}

Code code_from_errno(int error_number) {
  switch (error_number) {
    case 0:
      return Code::ok;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
    case EFAULT:
    case EBADF:
      return Code::invalid_argument;
    case ENOENT:
    case ENOTDIR:
    case ENODEV:
    case ENXIO:
      return Code::not_found;
    case EACCES:
    case EPERM:
      return Code::permission_denied;
    case EISDIR:
      return Code::is_directory;
    case EOVERFLOW:
      return Code::out_of_range;
    case EROFS:
      return Code::read_only;
    case EBUSY:
    case ETXTBSY:
      return Code::in_use;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Code::no_space;
    case ESTALE:
      return Code::changed;
    case ENOSYS:
    case EOPNOTSUPP:
      return Code::unsupported;
    case EMFILE:
    case ENFILE:
      return Code::too_many_files;
    case ENOMEM:
      return Code::out_of_memory;
    case ETIMEDOUT:
    case ETIME:
      return Code::timed_out;
    case ECANCELED:
      return Code::cancelled;
    default:
      return Code::io_error;
  }
}

std::string list_of(std::span<const std::string> names) {
  constexpr std::size_t names_shown = 8;
  std::string text;
  for (const std::string& name : names.first(std::min(names.size(), names_shown))) {
    text += (text.empty() ? "" : ", ") + name;
  }
  if (names.size() > names_shown) text += " and " + std::to_string(names.size() - names_shown) + " more";
  return text;
}

Error system_error(int error_number, std::string what, std::string hint) {
  // Whatever was being done, only this helps.
  if ((error_number == EMFILE || error_number == ENFILE) && hint.find("ulimit -n") == std::string::npos) {
    hint = "too many files are open: close some, or raise the limit (ulimit -n)";
  }
  return {code_from_errno(error_number), error_number,
          std::move(what) + ": " + std::generic_category().message(error_number), std::move(hint)};
}

}  // namespace penstock
