// placeholder
#include "sim/seed_run.h"
namespace verbena::sim {
RunResult run_broken(uint64_t) { return {}; }
}
