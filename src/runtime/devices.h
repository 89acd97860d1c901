// Discovers the RDMA devices of this machine: one per network interface that is up and has an
// address. Explains why other interfaces are no devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/unique_fd.h"
#include "wire/identifiers.h"

namespace verbena::runtime {

// The properties that follow the interface while a device is open.
struct PortState {
  bool up = false;                          // administratively up and running (carrier)
  uint32_t interface_mtu = 0;               // bytes of IP packet
  wire::Mtu active_mtu = wire::Mtu::k1024;  // largest RoCE MTU that fits into it with all headers
  uint32_t speed_mbps = 0;           // as reported by the interface; loopback: low on purpose
  std::vector<wire::Gid> addresses;  // IPv4-mapped, then IPv6, link-local last; no tentative ones
};

struct DeviceInfo {
  std::string name;  // verbena_<interface>
  std::string interface;
  uint32_t interface_index = 0;
  bool loopback = false;
  uint64_t guid = 0;  // host order; never 0; from the MAC address, or made from name and host id
  PortState port;
};

// The kernel's name of its character device. UCX looks for one (src/view shows it).
inline std::string uverbs_name(const DeviceInfo& device) {
  return "uverbs" + std::to_string(device.interface_index);
}

// As ibv_devices, ibv_devinfo and sysfs print them: groups of four digits.
std::string guid_text(uint64_t guid);
std::string gid_text(const wire::Gid& gid);

struct UnusableInterface {
  std::string interface;
  std::string
      why;  // "is down: ip link set eth1 up", "has no address", "not selected by VERBENA_DEVICES"
};

struct Discovery {
  std::vector<DeviceInfo> devices;  // non-loopback first
  std::vector<UnusableInterface> unusable;
};

// Reads the current interfaces. `selection` is VERBENA_DEVICES: empty for all, else a
// comma-separated list of device or interface names (the order given is the order listed), or
// "none".
Discovery discover_devices(const std::string& selection);

// The current state of one interface; nullopt if it is gone.
std::optional<PortState> read_port_state(uint32_t interface_index);

// GID table of an open device: an address keeps its index while the device is open. Removed entries
// are holes (all zero) until another address takes them.
class GidTable {
 public:
  static constexpr size_t kSize = 128;
  // True if anything changed.
  bool update(const std::vector<wire::Gid>& addresses);
  // Zero GID for an empty entry or an index out of range.
  wire::Gid at(size_t index) const {
    return index < entries_.size() ? entries_[index] : wire::Gid{};
  }
  size_t size() const { return entries_.size(); }
  bool contains(const wire::Gid& gid) const {
    return std::find(entries_.begin(), entries_.end(), gid) != entries_.end();
  }

 private:
  std::vector<wire::Gid> entries_;
};

// Reports changes of links and addresses of this network namespace (a netlink socket).
class InterfaceMonitor {
 public:
  InterfaceMonitor();  // fd() is -1 if the kernel refuses; then changes are not followed
  int fd() const { return fd_.get(); }
  // Reads all messages. True: one of them was about links or addresses.
  bool drain();

 private:
  os::UniqueFd fd_;
};

}  // namespace verbena::runtime
