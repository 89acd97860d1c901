// The findings of `verbena doctor`: one sentence per check, with the change that is needed.
#pragma once

#include <string>
#include <vector>

#include "runtime/devices.h"

namespace verbena::tool {

enum class Verdict {
  Good,
  Hint,     // works, but a change would improve it
  Problem,  // does not work until it is changed
};

struct Finding {
  Verdict verdict;
  std::string about;
  std::string text;
};
using Findings = std::vector<Finding>;

// Checks the library, the devices, UDP port 4791 and socket buffers. Sends no packets.
Findings examine_devices(const runtime::Discovery& found);

// Checks what the kernel permits: steering, shared memory, process slots, limits.
Findings examine_kernel();

// Checks on every device that this machine's own packets reach UDP port 4791.
Findings examine_firewall(const runtime::Discovery& found);

// Checks the path to another host: its address, whether it responds, the path MTU, and whether a
// program there speaks RoCE.
Findings examine_host(const runtime::Discovery& found, const std::string& host);

}  // namespace verbena::tool
