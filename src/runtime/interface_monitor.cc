// A netlink socket in the multicast groups for links and addresses.
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "runtime/devices.h"

namespace verbena::runtime {
namespace {

// Reads of one drain(). Unread messages keep the descriptor readable.
constexpr int kReadsPerDrain = 64;

bool about_interfaces(uint16_t type) {
  return type == RTM_NEWLINK || type == RTM_DELLINK || type == RTM_NEWADDR || type == RTM_DELADDR;
}

}  // namespace

InterfaceMonitor::InterfaceMonitor()
    : fd_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
  sockaddr_nl groups{};
  groups.nl_family = AF_NETLINK;
  groups.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (::bind(fd(), reinterpret_cast<const sockaddr*>(&groups), sizeof groups) != 0) fd_.reset();
}

bool InterfaceMonitor::drain() {
  if (!fd_.valid()) return false;
  bool changed = false;
  // Only a message's first header is needed, so the rest may be truncated.
  alignas(nlmsghdr) std::array<std::byte, 4096> buffer{};
  for (int i = 0; i < kReadsPerDrain; ++i) {
    sockaddr_nl from{};
    socklen_t from_bytes = sizeof from;
    const ssize_t n = ::recvfrom(fd(), buffer.data(), buffer.size(), 0,
                                 reinterpret_cast<sockaddr*>(&from), &from_bytes);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == ENOBUFS) {
        changed = true;  // messages were lost; some of them may have mattered
        continue;        // reading the error has cleared it
      }
      break;
    }
    if (from.nl_pid != 0 || static_cast<size_t>(n) < sizeof(nlmsghdr)) continue;  // not the kernel
    nlmsghdr header{};
    std::memcpy(&header, buffer.data(), sizeof header);
    changed = changed || about_interfaces(header.nlmsg_type);
  }
  return changed;
}

}  // namespace verbena::runtime
