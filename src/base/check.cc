// A failed check ends the process with one line that names the check. Continuing could corrupt
// memory.
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace verbena {

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "verbena: internal error, please report: %s does not hold (%s:%d)\n",
               expression, file, line);
  std::abort();
}

}  // namespace verbena
