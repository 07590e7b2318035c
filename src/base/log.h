// Log: rare messages for a person, on standard error. Never on the data path.
#pragma once

#include <string_view>

namespace penstock {

enum class LogLevel { error, warning, info };

// Messages above the level are dropped; PENSTOCK_LOG=error|warning|info, `warning` by default, read at first use.
void log(LogLevel level, std::string_view message);

}  // namespace penstock
