// Restricts a command to one NUMA node.
#pragma once

namespace verbena::daqtool {

// Runs this process on the processors of `node`. Memory follows, because the kernel allocates a
// page on the node that first touches it. Throws ToolError if there is no such node.
void run_on_node(int node);

}  // namespace verbena::daqtool
