// Reads the devices as the library discovers them, and the counters as `verbena counters` does.
#include "view/machine.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#include "os/plain_socket.h"
#include "os/unique_fd.h"
#include "runtime/config.h"
#include "runtime/counter_report.h"

namespace verbena::view {
namespace {

// Processes of other users and stopped processes do not reply; the reader of a counter waits no
// longer than this for them.
constexpr Duration kQueryTimeout = milliseconds(50);

}  // namespace

std::vector<runtime::DeviceInfo> ThisMachine::devices() const {
  return runtime::discover_devices(runtime::config().devices).devices;
}

// Uses an ioctl, because /sys/class/net may belong to another network namespace.
std::string ThisMachine::hardware(const runtime::DeviceInfo& device) const {
  const os::UniqueFd fd = os::plain_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC);
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  ifreq request{};
  std::strncpy(request.ifr_name, device.interface.c_str(), sizeof request.ifr_name - 1);
  request.ifr_data = reinterpret_cast<char*>(&driver);
  if (!fd.valid() || ::ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return {};
  const std::string address(driver.bus_info, ::strnlen(driver.bus_info, sizeof driver.bus_info));
  if (address.empty() || address.find('/') != std::string::npos) return {};
  char path[PATH_MAX];
  return ::realpath(("/sys/bus/pci/devices/" + address).c_str(), path) != nullptr ? path : "";
}

uint64_t ThisMachine::counter(const std::string& device, std::string_view name) const {
  uint64_t sum = 0;
  for (const host::SlotReport& report : runtime::query_counters(kQueryTimeout)) {
    for (const runtime::DeviceCounters& counters : runtime::parse_counters(report.text)) {
      if (counters.device != device) continue;
      for (const runtime::NamedCounter& c : counters.values) {
        const bool matches = name.starts_with('_') ? c.name.ends_with(name) : c.name == name;
        if (matches) sum += c.value;
      }
    }
  }
  return sum;
}

}  // namespace verbena::view
