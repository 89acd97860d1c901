// What stands in the way, found by trying what the library would do.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include <fmt/core.h>

#include "datapath/udp/slot_directory.h"
#include "datapath/udp/udp_socket.h"
#include "runtime/config.h"
#include "runtime/failure_text.h"
#include "tools/port_holders.h"
#include "tools/tool.h"

namespace verbena::tool {
namespace {

namespace fs = std::filesystem;

constexpr Duration kPatience = milliseconds(200);

class Finder {
 public:
  explicit Finder(const runtime::Discovery& found) : found_(found) {}

  std::vector<std::string> run() {
    if (!library_folder()) {
      add("Verbena's libibverbs.so.1 is not where this program looks for it: verbena run cannot "
          "work");
    }
    find_taken_ports();
    find_small_buffers();
    find_other_rdma();
    return std::move(problems_);
  }

 private:
  void add(std::string text) { problems_.push_back(std::move(text)); }

  void find_taken_ports() {
    std::set<pid_t> ours;
    for (const datapath::SlotReport& r : datapath::SlotDirectory::query_all(kPatience)) {
      if (r.pid != 0) ours.insert(r.pid);
    }
    for (const runtime::DeviceInfo& device : found_.devices) {
      for (const wire::Gid& gid : device.port.addresses) check_port(device, gid, ours);
    }
  }

  // Sockets of our own processes share the port. Where they are the only ones, nothing is tried:
  // one more socket, if only for a moment, would be in the way of their packets.
  void check_port(const runtime::DeviceInfo& device, const wire::Gid& gid,
                  const std::set<pid_t>& ours) {
    const std::vector<PortHolder> holders = holders_of(gid);
    const auto is_ours = [&](const PortHolder& h) { return ours.contains(h.pid); };
    if (!holders.empty() && std::ranges::all_of(holders, is_ours)) return;
    const auto socket = datapath::open_receive_socket(
        datapath::local_address(gid, device.interface_index), datapath::UdpOptions{});
    if (socket.ok()) return;
    std::string text =
        fmt::format("{}: UDP port 4791 on {} cannot be used", device.name, runtime::to_text(gid));
    if (socket.error().code != EADDRINUSE) {
      add(fmt::format("{}: {}", text, socket.error().why));
      return;
    }
    text += ": it is held by ";
    std::set<std::string> who;
    for (const PortHolder& h : holders) {
      if (!is_ours(h)) who.insert(describe(h));
    }
    if (who.empty()) who.insert("the kernel's rdma_rxe or by another user's process");
    for (const std::string& one : who) text += (one == *who.begin() ? "" : ", ") + one;
    add(text +
        ". Stop it (for rdma_rxe: rdma link delete, or modprobe -r rdma_rxe), run as the same "
        "user, or use another address");
  }

  // Asked of a socket: net.core.rmem_max itself is not to be seen in every namespace.
  void find_small_buffers() {
    const datapath::UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const int wanted = static_cast<int>(runtime::config().receive_buffer);
    int given = 0;
    socklen_t bytes = sizeof given;
    if (!fd.valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &wanted, sizeof wanted) != 0 ||
        ::getsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &given, &bytes) != 0) {
      return;
    }
    given /= 2;  // the kernel tells twice what it was asked for
    if (given >= wanted) return;
    add(fmt::format(
        "receive buffers are small: the kernel gives {} bytes of the {} asked for, so large "
        "transfers from several peers at once lose packets and are slower. As root: sysctl "
        "-w net.core.rmem_max={}",
        given, wanted, wanted));
  }

  void find_other_rdma() {
    std::error_code error;
    if (!fs::exists("/sys/class/net", error)) {
      add("/sys is not mounted: Verbena does not need it, but some programs (UCX, NCCL) look for "
          "RDMA "
          "devices there and will find none");
      return;
    }
    std::string kernel;
    for (const auto& entry : fs::directory_iterator("/sys/class/infiniband", error)) {
      kernel += (kernel.empty() ? "" : ", ") + entry.path().filename().string();
    }
    if (!kernel.empty()) {
      add(fmt::format(
          "this machine also has RDMA devices of the kernel ({}): programs started by verbena "
          "run do not see them",
          kernel));
    }
  }

  const runtime::Discovery& found_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> find_problems(const runtime::Discovery& found) {
  return Finder(found).run();
}

}  // namespace verbena::tool
