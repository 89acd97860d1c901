// Log lines for the user of the program: one line each, what happened and what to do.
#pragma once

#include "runtime/config.h"

namespace verbena::runtime {

bool log_enabled(LogLevel level);
[[gnu::format(printf, 2, 3)]] void log(LogLevel level, const char* format, ...);

}  // namespace verbena::runtime
