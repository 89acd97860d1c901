// Translates the kernel's properties of an interface into verbs properties of a port.
#include "runtime/port_state.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "os/plain_socket.h"
#include "os/unique_fd.h"

namespace verbena::runtime {
namespace {

// Loopback has no speed. It reports the lowest of verbs, so that a program that chooses the fastest
// device chooses a real interface.
constexpr uint32_t kLoopbackMbps = 2500;
// The kernel reports this speed for its virtual Ethernet devices.
constexpr uint32_t kUnknownMbps = 10000;

constexpr LinkRate kLinkRates[] = {
    {2500, 1, 1, "SDR"},    {10000, 1, 8, "FDR10"}, {20000, 4, 2, "DDR"},
    {25000, 1, 32, "EDR"},  {40000, 4, 8, "FDR10"}, {50000, 2, 32, "EDR"},
    {100000, 4, 32, "EDR"}, {200000, 4, 64, "HDR"}, {400000, 4, 128, "NDR"},
};

// IPv4-mapped, then IPv6, link-local last: most programs use the first GID.
int rank(const wire::Gid& gid) {
  if (gid.is_ipv4()) return 0;
  return gid.is_link_local() ? 2 : 1;
}

// Uses ioctl because /sys may be absent or show another network namespace.
uint32_t speed_of(const Interface& link) {
  if ((link.flags & IFF_LOOPBACK) != 0) return kLoopbackMbps;
  const os::UniqueFd fd = os::plain_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC);
  ethtool_cmd settings{};
  settings.cmd = ETHTOOL_GSET;
  ifreq request{};
  std::strncpy(request.ifr_name, link.name.c_str(), sizeof request.ifr_name - 1);
  request.ifr_data = reinterpret_cast<char*>(&settings);
  if (!fd.valid() || ::ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return kUnknownMbps;
  const uint32_t mbps = ethtool_cmd_speed(&settings);
  // SPEED_UNKNOWN is all ones; some drivers store only its lower half.
  return mbps == 0 || mbps >= 0xFFFF0000u || mbps == 0xFFFF ? kUnknownMbps : mbps;
}

}  // namespace

wire::Mtu roce_mtu_for(uint32_t interface_mtu) {
  using wire::Mtu;
  for (const Mtu mtu : {Mtu::k4096, Mtu::k2048, Mtu::k1024, Mtu::k512}) {
    if (interface_mtu >= interface_mtu_for(mtu)) return mtu;
  }
  return Mtu::k256;
}

const LinkRate& link_rate_for(uint32_t mbps) {
  const auto* rate =
      std::ranges::find_if(kLinkRates, [&](const LinkRate& r) { return mbps <= r.mbps; });
  return rate != std::end(kLinkRates) ? *rate : *std::prev(rate);
}

PortState port_state_of(const Interface& link) {
  PortState port;
  port.up = (link.flags & IFF_UP) != 0 && (link.flags & IFF_RUNNING) != 0;
  port.interface_mtu = link.mtu;
  port.active_mtu = roce_mtu_for(link.mtu);
  port.speed_mbps = speed_of(link);
  for (const InterfaceAddress& a : link.addresses) {
    // An address with two prefixes is listed twice.
    const bool known = std::ranges::find(port.addresses, a.gid) != port.addresses.end();
    if (!a.tentative && !a.duplicate && !known) port.addresses.push_back(a.gid);
  }
  std::ranges::stable_sort(port.addresses, {}, rank);
  return port;
}

std::optional<PortState> read_port_state(uint32_t interface_index) {
  const Interfaces found = read_interfaces(interface_index);
  if (found.all.empty()) return std::nullopt;
  return port_state_of(found.all.front());
}

}  // namespace verbena::runtime
