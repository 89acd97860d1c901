// What `verbena doctor` finds: one sentence for each thing it looked at, with what to do about it.
#pragma once

#include <string>
#include <vector>

#include "runtime/devices.h"

namespace verbena::tool {

enum class Verdict {
  Good,
  Hint,     // works as it is, better otherwise
  Problem,  // something does not work until it is changed
};

struct Finding {
  Verdict verdict;
  std::string about;
  std::string text;
};
using Findings = std::vector<Finding>;

// The library, the devices, UDP port 4791 and socket buffers: quick, and nothing is sent.
Findings examine_devices(const runtime::Discovery& found);

// What the kernel permits: steering, shared memory, the process directory, limits.
Findings examine_kernel();

// Whether this machine's own packets reach UDP port 4791, on every device.
Findings examine_firewall(const runtime::Discovery& found);

// The way to another host: its address, whether it answers, how large packets may be, and whether
// somebody there speaks RoCE.
Findings examine_host(const runtime::Discovery& found, const std::string& host);

}  // namespace verbena::tool
