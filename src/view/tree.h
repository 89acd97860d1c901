// The view: the entries that the kernel would show for RDMA devices in /sys/class/infiniband, in
// the folders that its links lead to, and in /dev/infiniband. It is a pure function of the machine:
// it keeps no state, so it is never out of date.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/devices.h"

namespace verbena::view {

// The source of the view's contents. A lookup queries only the parts that a path needs.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual std::vector<runtime::DeviceInfo> devices() const = 0;
  // The folder of the device's hardware under /sys/devices; empty if there is none.
  virtual std::string hardware(const runtime::DeviceInfo& device) const = 0;
  // The sum of a counter over all processes: "packets_sent", or "_bytes_sent" for that of every
  // datapath.
  virtual uint64_t counter(const std::string& device, std::string_view name) const = 0;
};

struct Node {
  enum class Kind : uint8_t {
    None,
    Directory,
    File,
    CharacterDevice,
    Link,
    Elsewhere,  // an entry of the kernel at `path`
  };
  Kind kind = Kind::None;
  std::string path{};                // with all links resolved
  std::string text{};                // File: contents; Link: target
  std::vector<std::string> names{};  // Directory
  uint32_t minor = 0;                // CharacterDevice
  int refusal = 0;                   // File: the errno of reading it; 0: readable
};

// A quick check: false if a path cannot be in the view.
bool may_be_shown(std::string_view path);

enum class LastLink : uint8_t { Follow, Keep };
// A relative path begins at `base`. nullopt: the path does not lead into the view.
std::optional<Node> look_up(const Machine& machine, std::string_view base, std::string_view path,
                            LastLink last);

}  // namespace verbena::view
