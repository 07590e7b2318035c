// What a status of NVMe means in our list of errors.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nvme/spec.h"
#include "penstock/error.h"

namespace penstock::nvme {

// Whether the same command may well succeed the next time: the controller does not object (DNR), and it is not the
// media that failed.
bool is_transient(StatusField status);
// REQUIRES: !status.ok()
Code code_of(StatusField status);
// For Failure::system_error and its like: EAGAIN for what is worth a retry, else 0x10000 + type and code, which is no
// error number of the system.
std::int32_t number_of(StatusField status);
// What such a number stands for; nothing if it is another's.
std::optional<StatusField> status_from_number(std::int32_t number);
// "lba out of range (status 0/80)"
std::string text_of(StatusField status);

}  // namespace penstock::nvme
