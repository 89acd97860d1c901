// What the kernel would show of RDMA devices in its file systems: /sys/class/infiniband, the
// folders its links lead to, and /dev/infiniband. A pure function of the machine: nothing is kept,
// nothing is written, so nothing is ever out of date.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/devices.h"

namespace verbena::view {

// What the tree is made from, asked only for as much as a path needs.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual std::vector<runtime::DeviceInfo> devices() const = 0;
  // The folder under /sys/devices of the hardware behind the device; empty if there is none.
  virtual std::string hardware(const runtime::DeviceInfo& device) const = 0;
  // The sum of a counter ("packets_sent", of every datapath "_bytes_sent") over all processes.
  virtual uint64_t counter(const std::string& device, std::string_view name) const = 0;
};

struct Node {
  enum class Kind : uint8_t {
    None,
    Directory,
    File,
    CharacterDevice,
    Link,
    Elsewhere,  // the kernel's own: `path`
  };
  Kind kind = Kind::None;
  std::string path{};                // where it was found, no link in it
  std::string text{};                // File: what it says; Link: where it leads
  std::vector<std::string> names{};  // Directory
  uint32_t minor = 0;                // CharacterDevice
  int refusal = 0;                   // File: the errno that reading it gives; 0: it can be read
};

// Whether a path may be of the tree; if not, the rest need not be asked.
bool may_be_shown(std::string_view path);

enum class LastLink : uint8_t { Follow, Keep };
// A relative path begins at `base`. nullopt: it has nothing to do with the tree.
std::optional<Node> look_up(const Machine& machine, std::string_view base, std::string_view path,
                            LastLink last);

}  // namespace verbena::view
