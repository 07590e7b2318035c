// What cuFile's numbers mean: the vendor's name, our code, and what to do. A number that is not known stays a number.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "engines/cufile/api.h"
#include "penstock/error.h"

namespace penstock::cufile {

// "CU_FILE_IO_NOT_SUPPORTED"; "unknown cuFile error" for a number that is not in the list.
std::string_view error_name(int number);
// "CU_FILE_IO_NOT_SUPPORTED (5008)"
std::string describe(int number);
Code code_from_number(int number);
// What a person can do about it; may be empty.
std::string_view error_hint(int number);

// "register /x with cuFile: CU_FILE_IO_NOT_SUPPORTED (5008)". `hint` goes before the general one.
Error make_error(CfError error, const std::string& what, std::string hint = {});

}  // namespace penstock::cufile
