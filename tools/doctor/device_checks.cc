// Checks of the library, the devices and their UDP port, by the same calls that the library makes.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>

#include <fmt/core.h>

#include "datapath/udp/udp_socket.h"
#include "host/slot_directory.h"
#include "runtime/config.h"
#include "runtime/failure_text.h"
#include "runtime/port_state.h"
#include "tools/doctor/findings.h"
#include "tools/doctor/port_holders.h"
#include "tools/tool.h"

namespace verbena::tool {
namespace {

namespace fs = std::filesystem;

constexpr Duration kTimeout = milliseconds(200);

class DeviceChecks {
 public:
  explicit DeviceChecks(const runtime::Discovery& found) : found_(found) {}

  Findings run() {
    find_library();
    find_devices();
    find_taken_ports();
    find_small_buffers();
    find_other_rdma();
    return std::move(findings_);
  }

 private:
  void add(Verdict verdict, const char* about, std::string text) {
    findings_.push_back({verdict, about, std::move(text)});
  }

  void find_library() {
    if (const auto folder = library_folder()) {
      add(Verdict::Good, "library", "in " + *folder);
    } else {
      add(Verdict::Problem, "library",
          "Verbena's libibverbs.so.1 is not where this program looks for it: verbena run cannot "
          "work");
    }
  }

  void find_devices() {
    if (found_.devices.empty()) {
      std::string why;
      for (const auto& [interface, reason] : found_.unusable) {
        why += fmt::format("{} {} {}", why.empty() ? ":" : ";", interface, reason);
      }
      add(Verdict::Problem, "devices",
          "no interface of this network namespace is up and has an address" + why);
    }
    for (const runtime::DeviceInfo& device : found_.devices) {
      const runtime::PortState& port = device.port;
      const uint32_t wanted = runtime::interface_mtu_for(wire::Mtu::k4096);
      const bool small = port.active_mtu != wire::Mtu::k4096;
      add(!port.up ? Verdict::Problem : Verdict::Good, "devices",
          fmt::format("{} has {}{} and a RoCE MTU of {}{}", device.name,
                      port.addresses.empty() ? "no address" : runtime::to_text(port.addresses[0]),
                      port.up ? "" : ", no carrier", wire::bytes_of(port.active_mtu),
                      small ? fmt::format("; 4096 needs an interface MTU of {0} on every hop: ip "
                                          "link set {1} mtu {0}",
                                          wanted, device.interface)
                            : ""));
    }
  }

  void find_taken_ports() {
    std::set<pid_t> ours;
    for (const host::SlotReport& r : host::SlotDirectory::query_all(kTimeout)) {
      if (r.pid != 0) ours.insert(r.pid);
    }
    const size_t before = findings_.size();
    for (const runtime::DeviceInfo& device : found_.devices) {
      for (const wire::Gid& gid : device.port.addresses) check_port(device, gid, ours);
    }
    if (findings_.size() == before && !found_.devices.empty()) {
      add(Verdict::Good, "UDP port 4791",
          ours.empty() ? "free on every address"
                       : fmt::format("free, or shared with your own {} Verbena process{}",
                                     ours.size(), ours.size() == 1 ? "" : "es"));
    }
  }

  // The user's own Verbena processes share the port. If they are its only holders, the check opens
  // no socket: even for a moment it would receive their packets.
  void check_port(const runtime::DeviceInfo& device, const wire::Gid& gid,
                  const std::set<pid_t>& ours) {
    const std::vector<PortHolder> holders = holders_of(gid);
    const auto is_ours = [&](const PortHolder& h) { return ours.contains(h.pid); };
    if (!holders.empty() && std::ranges::all_of(holders, is_ours)) return;
    const auto socket = datapath::open_receive_socket(
        host::local_address(gid, device.interface_index), datapath::UdpOptions{});
    if (socket.ok()) return;
    std::string text =
        fmt::format("{}: UDP port 4791 on {} cannot be used", device.name, runtime::to_text(gid));
    if (socket.error().code != EADDRINUSE) {
      add(Verdict::Problem, "UDP port 4791", fmt::format("{}: {}", text, socket.error().why));
      return;
    }
    text += ": it is held by ";
    std::set<std::string> others;
    for (const PortHolder& h : holders) {
      if (!is_ours(h)) others.insert(describe(h));
    }
    if (others.empty()) others.insert("the kernel's rdma_rxe or by another user's process");
    for (const std::string& one : others) text += (one == *others.begin() ? "" : ", ") + one;
    add(Verdict::Problem, "UDP port 4791",
        text +
            ". Stop it (for rdma_rxe: rdma link delete, or modprobe -r rdma_rxe), run as the same "
            "user, or use another address");
  }

  // Uses a socket, because net.core.rmem_max is not visible in every namespace.
  void find_small_buffers() {
    const os::UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const int wanted = static_cast<int>(runtime::config().receive_buffer);
    int given = 0;
    socklen_t bytes = sizeof given;
    if (!fd.valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &wanted, sizeof wanted) != 0 ||
        ::getsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &given, &bytes) != 0) {
      return;
    }
    given /= 2;  // the kernel returns twice the requested size
    if (given >= wanted) {
      add(Verdict::Good, "receive buffers", fmt::format("{} bytes, as requested", given));
      return;
    }
    add(Verdict::Hint, "receive buffers",
        fmt::format("receive buffers are small: the kernel gives {} bytes of the {} requested, so "
                    "large transfers from several peers at once lose packets and are slower. As "
                    "root: sysctl -w net.core.rmem_max={}",
                    given, wanted, wanted));
  }

  void find_other_rdma() {
    std::error_code error;
    if (!fs::exists("/sys/class/net", error)) {
      add(Verdict::Hint, "other RDMA",
          "/sys is not mounted: Verbena does not need it, but some programs (UCX, NCCL) look for "
          "RDMA devices there and will find none");
      return;
    }
    std::string kernel;
    for (const auto& entry : fs::directory_iterator("/sys/class/infiniband", error)) {
      // Under `verbena env`, as in a container image, these are Verbena's own devices.
      std::string firmware;
      std::ifstream file(entry.path() / "fw_ver");
      std::getline(file, firmware);
      if (firmware.starts_with("verbena ")) continue;
      kernel += (kernel.empty() ? "" : ", ") + entry.path().filename().string();
    }
    if (!kernel.empty()) {
      add(Verdict::Hint, "other RDMA",
          fmt::format("this machine also has RDMA devices of the kernel ({}): programs started by "
                      "verbena run do not see them",
                      kernel));
    }
  }

  const runtime::Discovery& found_;
  Findings findings_;
};

}  // namespace

Findings examine_devices(const runtime::Discovery& found) { return DeviceChecks(found).run(); }

}  // namespace verbena::tool
