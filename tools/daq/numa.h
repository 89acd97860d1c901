// Where in the machine a command runs.
#pragma once

namespace verbena::daqtool {

// From now on, on the processors of that NUMA node; memory follows, as pages are where they are
// touched first. Throws Trouble where there is none.
void run_on_node(int node);

}  // namespace verbena::daqtool
