// In tests, who asks a Result for what it does not have fails the test: GoogleTest catches what is thrown here, and
// goes on with the next. On other threads than the test's, the process ends as it would otherwise.
//
// These take the place of the inline functions of penstock/result.h that have the same names for the linker, which
// prefers what is not inline. So this is an object of each test executable: of a library, it would not be taken.
#include <stdexcept>
#include <string>

#include "penstock/error.h"

namespace penstock::test {

[[noreturn]] void throw_for_value(const Error& error) __asm__("_ZN8penstock17fail_value_accessERKNS_5ErrorE");
[[noreturn]] void throw_for_error() __asm__("_ZN8penstock17fail_error_accessEv");

void throw_for_value(const Error& error) {
  throw std::logic_error("value of a failed Result: " + error.message + (error.hint.empty() ? "" : "; " + error.hint));
}

void throw_for_error() {
  throw std::logic_error("error of a Result or Status that is ok");
}

}  // namespace penstock::test
