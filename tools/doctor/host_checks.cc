// Checks of the paths of packets: to this machine's own port 4791 and to other hosts.
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
using Kind = ProbeResult::Kind;
using runtime::DeviceInfo;
using runtime::Discovery;

constexpr uint32_t kSmallPacket = 128;
constexpr Duration kPathTimeout = milliseconds(1200);
// The kernel searches three seconds for a neighbour before it reports an error.
constexpr Duration kNeighbourTimeout = milliseconds(3600);

constexpr const char* kOpenThePort =
    "allow UDP port 4791 in both directions (ufw allow 4791/udp; firewall-cmd --add-port=4791/udp; "
    "nft add "
    "rule inet filter input udp dport 4791 accept)";

double milliseconds_of(Duration d) { return static_cast<double>(d.ns) / 1e6; }

// Whether a line of the file begins with `start`.
bool has_line(const char* path, const char* start) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) return true;
  }
  return false;
}

// Without privileges, a firewall's rules are not readable, but its state is.
std::string firewall_manager() {
  if (has_line("/etc/ufw/ufw.conf", "ENABLED=yes")) return "ufw";
  if (std::ifstream("/run/firewalld.pid").good()) return "firewalld";
  return {};
}

struct Target {
  Path path;
  const DeviceInfo* device = nullptr;  // null: the path leaves through no Verbena device
};

const DeviceInfo* device_with(const Discovery& found, const wire::Gid& gid) {
  const auto has_it = [&](const DeviceInfo& d) {
    return std::ranges::find(d.port.addresses, gid) != d.port.addresses.end();
  };
  const auto device = std::ranges::find_if(found.devices, has_it);
  return device != found.devices.end() ? std::to_address(device) : nullptr;
}

// The path of packets to an address; nullopt: no route.
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
    const EchoResult echo = roce_echo(*target_->device, path().from.gid, path().to.gid);
    const bool is_there = check_reachable(echo);
    if (is_there) check_mtu();
    check_echo(echo, is_there);
    return std::move(findings_);
  }

 private:
  const Path& path() const { return target_->path; }
  void add(Verdict verdict, const char* about, std::string text) {
    findings_.push_back({verdict, about, std::move(text)});
  }

  void find_target() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* all = nullptr;
    const int failed = ::getaddrinfo(host_.c_str(), "4791", &hints, &all);
    if (failed != 0) {
      return add(Verdict::Problem, "address",
                 fmt::format("'{}' is neither an address nor a known name: {}", host_,
                             ::gai_strerror(failed)));
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
    const std::string from = runtime::to_text(path().from.gid);
    if (target_->device == nullptr) {
      return add(
          Verdict::Problem, "address",
          fmt::format("the route to it starts at {}, which belongs to no Verbena device: see "
                      "verbena devices",
                      from));
    }
    add(Verdict::Good, "address",
        fmt::format("{}, reached from {} by {}", runtime::to_text(path().to.gid), from,
                    target_->device->name));
  }

  // True: the host responds to UDP or to RoCE.
  bool check_reachable(const EchoResult& echo) {
    const bool speaks_roce = echo.responses > 0;
    const ProbeResult result =
        probe(path(), closed_port(), kSmallPacket, speaks_roce ? kPathTimeout : kNeighbourTimeout);
    const std::string sender = result.sender.empty() ? "this machine's kernel" : result.sender;
    switch (result.kind) {
      case Kind::Refused:
        add(Verdict::Good, "reachable",
            fmt::format("it responds in {:.3f} ms", milliseconds_of(result.took)));
        return true;
      case Kind::Forbidden:
        add(Verdict::Problem, "reachable", "this machine's own firewall blocks UDP to it");
        return speaks_roce;
      default:
        break;
    }
    if (speaks_roce) {
      add(Verdict::Good, "reachable",
          "it responds only to RoCE: a firewall blocks everything else");
    } else if (result.kind == Kind::Prohibited) {
      add(Verdict::Problem, "reachable", fmt::format("a firewall at {} blocks UDP", sender));
    } else if (result.kind == Kind::Unreachable) {
      add(Verdict::Problem, "reachable",
          fmt::format("{} reports no route to it: the host is down, or the address or the route is "
                      "wrong",
                      sender));
    } else {
      add(Verdict::Problem, "reachable",
          "no response: the host is down, the address is wrong, or a firewall drops everything "
          "silently");
    }
    return speaks_roce;
  }

  void check_mtu() {
    const DeviceInfo& device = *target_->device;
    const PathMtu mtu = find_path_mtu(path(), device.interface_index);
    if (mtu.bytes == 0) {
      return add(Verdict::Hint, "path MTU",
                 "cannot be measured: the host sends no ICMP error for a closed UDP port");
    }
    const uint32_t ours = wire::bytes_of(device.port.active_mtu);
    const uint32_t fits = wire::bytes_of(runtime::roce_mtu_for(mtu.bytes));
    std::string text =
        fmt::format("packets of {} bytes arrive{}, enough for a RoCE MTU of {}", mtu.bytes,
                    mtu.lost_bytes != 0 ? " (or somewhat more)" : "", fits);
    if (mtu.lost_bytes != 0) {
      text += fmt::format(
          "; packets of {} bytes are lost without an ICMP error: a hop or a tunnel has a smaller "
          "MTU than {}, or a firewall drops the ICMP error",
          mtu.lost_bytes, device.interface);
    }
    // A loopback path has a larger MTU than the interface that has the address.
    const bool too_large = fits < ours;
    if (too_large) {
      text += fmt::format(
          ". Programs use the RoCE MTU {} of {}, and their full packets are lost: set the "
          "interface's MTU to that of the path (ip link set {} mtu {}), or raise it on every hop",
          ours, device.name, device.interface, mtu.bytes);
    }
    add(too_large ? Verdict::Problem : Verdict::Good, "path MTU", text);
  }

  void check_echo(const EchoResult& echo, bool is_there) {
    constexpr const char* kAbout = "RoCE echo";
    if (!echo.error.empty()) return add(Verdict::Problem, kAbout, echo.error);
    if (echo.responses == echo.requests) {
      return add(Verdict::Good, kAbout,
                 fmt::format("{} responses to {} requests, the fastest in {:.3f} ms",
                             echo.responses, echo.requests, milliseconds_of(echo.fastest)));
    }
    if (echo.responses > 0) {
      return add(Verdict::Hint, kAbout,
                 fmt::format("only {} responses to {} requests: the network loses packets",
                             echo.responses, echo.requests));
    }
    if (!is_there) return;  // already reported
    const ProbeResult result = probe(path(), wire::kRoceUdpPort, kSmallPacket, kPathTimeout);
    switch (result.kind) {
      case Kind::Refused:
        return add(
            Verdict::Problem, kAbout,
            fmt::format("the host is up, but no program receives on its UDP port 4791. Start "
                        "a program on Verbena there (verbena perf --listen), or set up its "
                        "RDMA NIC or rdma_rxe. If one runs, a firewall rejects the packets: "
                        "{}",
                        kOpenThePort));
      case Kind::Forbidden:
        return add(Verdict::Problem, kAbout,
                   fmt::format("this machine's own firewall blocks packets to UDP port 4791: {}",
                               kOpenThePort));
      case Kind::Prohibited:
        return add(
            Verdict::Problem, kAbout,
            fmt::format("a firewall at {} refuses UDP port 4791: {}", result.sender, kOpenThePort));
      default:
        return add(
            Verdict::Problem, kAbout,
            fmt::format("the host is up, but UDP port 4791 is silent. Most likely a firewall "
                        "drops the packets, there, here or in between: {}. Otherwise the "
                        "receiver there ignores connection requests: on a host with an RDMA "
                        "NIC or rdma_rxe, modprobe rdma_cm",
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
    if (echo.responses > 0) continue;
    const std::string where = fmt::format("{} ({})", device.name, runtime::to_text(own));
    findings.push_back({Verdict::Problem, "firewall",
                        echo.error.empty()
                            ? fmt::format("packets that this machine sends to itself do not reach "
                                          "UDP port 4791 of {}: its firewall drops them; {}",
                                          where, kOpenThePort)
                            : fmt::format("{} cannot be tested: {}", where, echo.error)});
  }
  const std::string manager = firewall_manager();
  if (findings.empty() && !found.devices.empty()) {
    std::string text = "this machine's own RoCE packets reach UDP port 4791";
    if (!manager.empty()) {
      text += fmt::format("; {} is active, so if other hosts get no response, {}", manager,
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
