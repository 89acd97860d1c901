// VERBENA_CHECK: an assertion that fails only if Verbena has a bug. It stays on in release builds.
// Never use it on a value that a peer or a caller can influence: return a Verdict or an errno.
#pragma once

namespace verbena {

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace verbena

#define VERBENA_CHECK(expression) \
  ((expression) ? void(0) : ::verbena::check_failed(#expression, __FILE__, __LINE__))
