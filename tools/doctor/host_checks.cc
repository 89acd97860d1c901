// The ways that packets take: to this machine's own port 4791, and to other hosts.
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include <fmt/core.h>

#include "datapath/udp/udp_socket.h"
#include "runtime/failure_text.h"
#include "runtime/port_state.h"
#include "tools/doctor/findings.h"
#include "tools/doctor/path_probe.h"
#include "tools/doctor/roce_echo.h"
#include "wire/icrc.h"

namespace verbena::tool {
namespace {

using host::SocketAddress;
using Kind = ProbeAnswer::Kind;
using runtime::DeviceInfo;
using runtime::Discovery;

constexpr uint32_t kSmallPacket = 128;
constexpr Duration kPatience = milliseconds(1200);
// The kernel looks three seconds for a neighbour before it says that there is none.
constexpr Duration kPatienceForNeighbour = milliseconds(3600);

constexpr const char* kOpenThePort =
    "let UDP port 4791 in and out (ufw allow 4791/udp; firewall-cmd --add-port=4791/udp; nft add "
    "rule inet filter input udp dport 4791 accept)";

double milliseconds_of(Duration d) { return static_cast<double>(d.ns) / 1e6; }

// Whether a file has a line that begins so.
bool has_line(const char* path, const char* start) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) return true;
  }
  return false;
}

// The rules of a firewall are not to be read without privileges; whether one is switched on is.
std::string firewall_manager() {
  if (has_line("/etc/ufw/ufw.conf", "ENABLED=yes")) return "ufw";
  if (std::ifstream("/run/firewalld.pid").good()) return "firewalld";
  return {};
}

struct Target {
  Way way;
  const DeviceInfo* device = nullptr;  // none: the way leaves through no device of ours
};

const DeviceInfo* device_with(const Discovery& found, const wire::Gid& gid) {
  const auto has_it = [&](const DeviceInfo& d) {
    return std::ranges::find(d.port.addresses, gid) != d.port.addresses.end();
  };
  const auto device = std::ranges::find_if(found.devices, has_it);
  return device != found.devices.end() ? std::to_address(device) : nullptr;
}

// Where packets to an address leave; none: there is no route.
std::optional<Target> target_at(const Discovery& found, const addrinfo& info) {
  const os::UniqueFd fd(::socket(info.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage to{}, from{};
  socklen_t bytes = sizeof from;
  std::memcpy(&to, info.ai_addr, info.ai_addrlen);
  if (!fd.valid() || ::connect(fd.get(), info.ai_addr, info.ai_addrlen) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&from), &bytes) != 0) {
    return std::nullopt;
  }
  const wire::Gid source = SocketAddress::gid_of(from);
  const DeviceInfo* const device = device_with(found, source);
  const uint32_t index = device != nullptr ? device->interface_index : 0;
  return Target{
      {host::local_address(source, index), host::local_address(SocketAddress::gid_of(to), index)},
      device};
}

class HostChecks {
 public:
  HostChecks(const Discovery& found, const std::string& host) : found_(found), host_(host) {}

  Findings run() {
    find_target();
    if (!target_ || target_->device == nullptr) return std::move(findings_);
    const EchoResult echo = roce_echo(*target_->device, way().from.gid, way().to.gid);
    const bool is_there = check_reachable(echo);
    if (is_there) check_mtu();
    check_echo(echo, is_there);
    return std::move(findings_);
  }

 private:
  const Way& way() const { return target_->way; }
  void add(Verdict verdict, const char* about, std::string text) {
    findings_.push_back({verdict, about, std::move(text)});
  }

  void find_target() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* all = nullptr;
    const int failed = ::getaddrinfo(host_.c_str(), "4791", &hints, &all);
    if (failed != 0) {
      return add(
          Verdict::Problem, "address",
          fmt::format("'{}' is no address and no known name: {}", host_, ::gai_strerror(failed)));
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(all, &::freeaddrinfo);
    for (const addrinfo* one = all; one != nullptr && !target_; one = one->ai_next) {
      target_ = target_at(found_, *one);
    }
    if (!target_) {
      return add(Verdict::Problem, "address",
                 "this machine has no route to it: ip route, or give an interface an address of "
                 "that network");
    }
    const std::string from = runtime::to_text(way().from.gid);
    if (target_->device == nullptr) {
      return add(Verdict::Problem, "address",
                 fmt::format("the way to it starts at {}, which belongs to no Verbena device: see "
                             "verbena devices",
                             from));
    }
    add(Verdict::Good, "address",
        fmt::format("{}, reached from {} by {}", runtime::to_text(way().to.gid), from,
                    target_->device->name));
  }

  // True: it answers one thing or the other.
  bool check_reachable(const EchoResult& echo) {
    const bool speaks_roce = echo.answered > 0;
    const ProbeAnswer answer =
        probe(way(), closed_port(), kSmallPacket, speaks_roce ? kPatience : kPatienceForNeighbour);
    const std::string who = answer.who.empty() ? "this machine's kernel" : answer.who;
    switch (answer.kind) {
      case Kind::Refused:
        add(Verdict::Good, "reachable",
            fmt::format("it answers in {:.3f} ms", milliseconds_of(answer.took)));
        return true;
      case Kind::Forbidden:
        add(Verdict::Problem, "reachable", "this machine's own firewall lets no UDP out to it");
        return speaks_roce;
      default:
        break;
    }
    if (speaks_roce) {
      add(Verdict::Good, "reachable", "it answers RoCE alone: a firewall hides the rest");
    } else if (answer.kind == Kind::Prohibited) {
      add(Verdict::Problem, "reachable", fmt::format("a firewall at {} lets no UDP through", who));
    } else if (answer.kind == Kind::Unreachable) {
      add(Verdict::Problem, "reachable",
          fmt::format("{} says that there is no way to it: the host is down, or the address or "
                      "the route is wrong",
                      who));
    } else {
      add(Verdict::Problem, "reachable",
          "it answers nothing at all: the host is down, the address is wrong, or a firewall drops "
          "everything silently");
    }
    return speaks_roce;
  }

  void check_mtu() {
    const DeviceInfo& device = *target_->device;
    const PathMtu mtu = find_path_mtu(way(), device.interface_index);
    if (mtu.bytes == 0) {
      return add(Verdict::Hint, "path MTU",
                 "cannot be measured: the host answers on no closed UDP port");
    }
    const uint32_t ours = wire::bytes_of(device.port.active_mtu);
    const uint32_t fits = wire::bytes_of(runtime::roce_mtu_for(mtu.bytes));
    std::string text =
        fmt::format("packets of {} bytes arrive{}, which carry a RoCE MTU of {}", mtu.bytes,
                    mtu.swallowed != 0 ? " (or somewhat more)" : "", fits);
    if (mtu.swallowed != 0) {
      text += fmt::format(
          "; those of {} vanish without a word: a hop or a tunnel carries less than {} thinks, or "
          "a firewall keeps its ICMP message away",
          mtu.swallowed, device.interface);
    }
    // A loopback path carries more than the interface that has the address.
    const bool too_large = fits < ours;
    if (too_large) {
      text += fmt::format(
          ". Programs take the RoCE MTU {} of {}, and their full packets are lost: set the "
          "interface's MTU to what the way carries (ip link set {} mtu {}), or raise it on every "
          "hop",
          ours, device.name, device.interface, mtu.bytes);
    }
    add(too_large ? Verdict::Problem : Verdict::Good, "path MTU", text);
  }

  void check_echo(const EchoResult& echo, bool is_there) {
    constexpr const char* kAbout = "RoCE echo";
    if (!echo.error.empty()) return add(Verdict::Problem, kAbout, echo.error);
    if (echo.answered == echo.asked) {
      return add(Verdict::Good, kAbout,
                 fmt::format("answered {} of {}, the fastest in {:.3f} ms", echo.answered,
                             echo.asked, milliseconds_of(echo.fastest)));
    }
    if (echo.answered > 0) {
      return add(Verdict::Hint, kAbout,
                 fmt::format("answered only {} of {}: the network between loses packets",
                             echo.answered, echo.asked));
    }
    if (!is_there) return;  // said already
    const ProbeAnswer answer = probe(way(), wire::kRoceUdpPort, kSmallPacket, kPatience);
    switch (answer.kind) {
      case Kind::Refused:
        return add(Verdict::Problem, kAbout,
                   fmt::format("the host is there, but nobody receives on its UDP port 4791. Start "
                               "a program on Verbena there (verbena perf --listen), or set up its "
                               "RDMA NIC or rdma_rxe. If one runs, a firewall refuses: {}",
                               kOpenThePort));
      case Kind::Forbidden:
        return add(Verdict::Problem, kAbout,
                   fmt::format("this machine's own firewall does not let packets to UDP port 4791 "
                               "out: {}",
                               kOpenThePort));
      case Kind::Prohibited:
        return add(
            Verdict::Problem, kAbout,
            fmt::format("a firewall at {} refuses UDP port 4791: {}", answer.who, kOpenThePort));
      default:
        return add(Verdict::Problem, kAbout,
                   fmt::format("the host is there, but UDP port 4791 is silent. Most likely a "
                               "firewall drops it, there, here or between: {}. Otherwise what "
                               "receives there answers no connection requests: on a host with an "
                               "RDMA NIC or rdma_rxe, modprobe rdma_cm",
                               kOpenThePort));
    }
  }

  const Discovery& found_;
  const std::string& host_;
  std::optional<Target> target_;
  Findings findings_;
};

}  // namespace

Findings examine_firewall(const Discovery& found) {
  Findings findings;
  for (const DeviceInfo& device : found.devices) {
    if (device.port.addresses.empty()) continue;
    const wire::Gid& own = device.port.addresses.front();
    const EchoResult echo = roce_echo(device, own, own);
    if (echo.answered > 0) continue;
    const std::string where = fmt::format("{} ({})", device.name, runtime::to_text(own));
    findings.push_back({Verdict::Problem, "firewall",
                        echo.error.empty()
                            ? fmt::format("packets that this machine sends to itself do not reach "
                                          "UDP port 4791 of {}: its firewall drops them; {}",
                                          where, kOpenThePort)
                            : fmt::format("{} cannot be tried: {}", where, echo.error)});
  }
  const std::string manager = firewall_manager();
  if (findings.empty() && !found.devices.empty()) {
    std::string text = "this machine's own RoCE packets reach UDP port 4791";
    if (!manager.empty()) {
      text += fmt::format("; {} is switched on, so if other hosts get no answer, {}", manager,
                          kOpenThePort);
    }
    findings.push_back({manager.empty() ? Verdict::Good : Verdict::Hint, "firewall", text});
  }
  return findings;
}

Findings examine_host(const Discovery& found, const std::string& host) {
  return HostChecks(found, host).run();
}

}  // namespace verbena::tool
