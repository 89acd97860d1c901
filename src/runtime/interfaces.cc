// Combines two netlink dumps, links and addresses.
#include "runtime/interfaces.h"

#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

#include "os/unique_fd.h"

namespace verbena::runtime {
namespace {

// The kernel fills at most 32 KiB per read of a dump; the data of a single link is far smaller.
constexpr size_t kReadBytes = 65536;
// The kernel marks a dump during which something changed. A few attempts are enough:
// InterfaceMonitor reports the change, and the caller reads again.
constexpr int kAttempts = 4;

using Bytes = std::span<const std::byte>;

template <typename T>
std::optional<T> load(Bytes from) {
  if (from.size() < sizeof(T)) return std::nullopt;
  T value{};
  std::memcpy(&value, from.data(), sizeof value);
  return value;
}

Bytes after(Bytes bytes, size_t n) { return n < bytes.size() ? bytes.subspan(n) : Bytes{}; }

// Calls `visit(type, payload)` for each attribute.
template <typename Visit>
void for_each_attribute(Bytes bytes, Visit visit) {
  while (const auto attribute = load<rtattr>(bytes)) {
    if (attribute->rta_len < sizeof(rtattr) || attribute->rta_len > bytes.size()) return;
    visit(static_cast<uint16_t>(attribute->rta_type & NLA_TYPE_MASK),
          bytes.subspan(RTA_LENGTH(0), attribute->rta_len - RTA_LENGTH(0)));
    bytes = after(bytes, RTA_ALIGN(attribute->rta_len));
  }
}

template <typename Body>
struct Request {
  nlmsghdr header{};
  Body body{};
};

enum class Dump : uint8_t { Complete, Changed, Failed };

// Sends one dump request and calls `visit(type, body)` for each message of the reply.
template <typename Body, typename Visit>
Dump dump(int fd, uint16_t type, uint32_t sequence, Visit visit) {
  Request<Body> request;
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.header.nlmsg_seq = sequence;
  if (::send(fd, &request, sizeof request, 0) < 0) return Dump::Failed;

  std::vector<std::byte> buffer(kReadBytes);
  bool changed = false;
  for (;;) {
    // The kernel writes the reply inside send() and recv(), so recv() need not wait.
    const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Dump::Failed;
    if (static_cast<size_t>(n) > buffer.size()) {
      errno = EMSGSIZE;
      return Dump::Failed;
    }
    Bytes rest = Bytes(buffer).first(static_cast<size_t>(n));
    while (const auto header = load<nlmsghdr>(rest)) {
      if (header->nlmsg_len < sizeof(nlmsghdr) || header->nlmsg_len > rest.size()) break;
      const Bytes body = rest.subspan(NLMSG_HDRLEN, header->nlmsg_len - NLMSG_HDRLEN);
      if (header->nlmsg_seq == sequence) {
        if ((header->nlmsg_flags & NLM_F_DUMP_INTR) != 0) changed = true;
        if (header->nlmsg_type == NLMSG_DONE) return changed ? Dump::Changed : Dump::Complete;
        if (header->nlmsg_type == NLMSG_ERROR) {
          const auto error = load<nlmsgerr>(body);
          errno = error && error->error < 0 ? -error->error : EIO;
          return Dump::Failed;
        }
        visit(header->nlmsg_type, body);
      }
      rest = after(rest, NLMSG_ALIGN(header->nlmsg_len));
    }
  }
}

std::optional<Interface> parse_link(Bytes body) {
  const auto info = load<ifinfomsg>(body);
  if (!info || info->ifi_index <= 0) return std::nullopt;
  Interface link;
  link.index = static_cast<uint32_t>(info->ifi_index);
  link.flags = info->ifi_flags;
  for_each_attribute(after(body, NLMSG_ALIGN(sizeof *info)), [&](uint16_t type, Bytes value) {
    if (type == IFLA_IFNAME) {
      const auto* text = reinterpret_cast<const char*>(value.data());
      link.name.assign(text, ::strnlen(text, value.size()));
    } else if (type == IFLA_MTU) {
      link.mtu = load<uint32_t>(value).value_or(0);
    } else if (type == IFLA_ADDRESS) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(value.data());
      link.hardware_address.assign(bytes, bytes + value.size());
    }
  });
  if (link.name.empty()) return std::nullopt;
  return link;
}

struct AddressOfLink {
  uint32_t index = 0;
  InterfaceAddress address;
};

std::optional<AddressOfLink> parse_address(Bytes body) {
  const auto info = load<ifaddrmsg>(body);
  if (!info) return std::nullopt;
  const bool v4 = info->ifa_family == AF_INET;
  if (!v4 && info->ifa_family != AF_INET6) return std::nullopt;
  const size_t bytes = v4 ? 4 : 16;
  uint32_t flags = info->ifa_flags;
  Bytes local;
  Bytes address;
  for_each_attribute(after(body, NLMSG_ALIGN(sizeof *info)), [&](uint16_t type, Bytes value) {
    if (type == IFA_FLAGS) flags = load<uint32_t>(value).value_or(flags);
    if (type == IFA_LOCAL && value.size() == bytes) local = value;
    if (type == IFA_ADDRESS && value.size() == bytes) address = value;
  });
  // On a point-to-point link IFA_ADDRESS is the remote end and IFA_LOCAL the local one.
  const Bytes ours = local.empty() ? address : local;
  if (ours.empty()) return std::nullopt;
  AddressOfLink result;
  result.index = info->ifa_index;
  result.address.gid = v4 ? wire::Gid::from_ipv4(ours.data()) : wire::Gid::from_ipv6(ours.data());
  result.address.duplicate = (flags & IFA_F_DADFAILED) != 0;
  // An optimistic address is tentative and usable.
  result.address.tentative = (flags & IFA_F_TENTATIVE) != 0 && (flags & IFA_F_OPTIMISTIC) == 0;
  return result;
}

Dump read_once(int fd, uint32_t only_index, uint32_t& sequence, std::vector<Interface>& to) {
  to.clear();
  const auto wanted = [&](uint32_t index) { return only_index == 0 || index == only_index; };
  const Dump links = dump<ifinfomsg>(fd, RTM_GETLINK, ++sequence, [&](uint16_t type, Bytes body) {
    if (type != RTM_NEWLINK) return;
    if (auto link = parse_link(body); link && wanted(link->index)) to.push_back(*link);
  });
  if (links == Dump::Failed) return Dump::Failed;
  std::ranges::sort(to, {}, &Interface::index);
  const Dump addresses =
      dump<ifaddrmsg>(fd, RTM_GETADDR, ++sequence, [&](uint16_t type, Bytes body) {
        if (type != RTM_NEWADDR) return;
        const auto found = parse_address(body);
        if (!found || !wanted(found->index)) return;
        const auto link = std::ranges::find(to, found->index, &Interface::index);
        if (link != to.end()) link->addresses.push_back(found->address);
      });
  return addresses == Dump::Complete ? links : addresses;
}

}  // namespace

Interfaces read_interfaces(uint32_t only_index) {
  Interfaces result;
  const os::UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd.valid()) {
    result.error = errno;
    return result;
  }
  uint32_t sequence = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    switch (read_once(fd.get(), only_index, sequence, result.all)) {
      case Dump::Complete:
        return result;
      case Dump::Changed:
        break;
      case Dump::Failed:
        result.error = errno;
        return result;
    }
  }
  return result;
}

}  // namespace verbena::runtime
