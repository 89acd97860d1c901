// Reads sockets from /proc/net/udp and finds their processes in /proc/PID/fd.
#include "tools/doctor/port_holders.h"

#include <pwd.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include <fmt/core.h>

#include "wire/icrc.h"

namespace verbena::tool {
namespace {

namespace fs = std::filesystem;

// The kernel prints an address as 32-bit words in its own byte order.
std::optional<wire::Gid> parse_address(const std::string& hex) {
  std::vector<uint32_t> words;
  for (size_t i = 0; i + 8 <= hex.size(); i += 8) {
    uint32_t word = 0;
    if (std::from_chars(hex.data() + i, hex.data() + i + 8, word, 16).ec != std::errc()) {
      return std::nullopt;
    }
    words.push_back(word);
  }
  if (words.size() == 1) return wire::Gid::from_ipv4(words.data());
  if (words.size() == 4) return wire::Gid::from_ipv6(words.data());
  return std::nullopt;
}

struct UdpSocket {
  wire::Gid address;
  PortHolder holder;
};

std::vector<UdpSocket> roce_sockets(const char* table) {
  std::vector<UdpSocket> sockets;
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // headings
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, timeout;
    UdpSocket found;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >>
        found.holder.uid >> timeout >> found.holder.inode;
    const size_t colon = local.find(':');
    if (!fields || colon == std::string::npos) continue;
    if (local.substr(colon + 1) != fmt::format("{:04X}", wire::kRoceUdpPort)) continue;
    const auto address = parse_address(local.substr(0, colon));
    if (!address) continue;
    found.address = *address;
    sockets.push_back(found);
  }
  return sockets;
}

bool is_any(const wire::Gid& gid) {
  const uint32_t zero = 0;
  return gid.is_zero() || gid == wire::Gid::from_ipv4(&zero);
}

pid_t find_owner(uint64_t inode) {
  if (inode == 0) return 0;
  const std::string wanted = fmt::format("socket:[{}]", inode);
  std::error_code error;
  for (const fs::directory_entry& process : fs::directory_iterator("/proc", error)) {
    const std::string name = process.path().filename();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    std::error_code refused;  // other users' processes
    for (const fs::directory_entry& fd : fs::directory_iterator(process.path() / "fd", refused)) {
      std::error_code gone;
      if (fs::read_symlink(fd.path(), gone) == wanted) return pid;
    }
  }
  return 0;
}

std::string user_name(uid_t uid) {
  const passwd* const user = ::getpwuid(uid);
  return user != nullptr ? user->pw_name : std::to_string(uid);
}

}  // namespace

std::vector<PortHolder> holders_of(const wire::Gid& address) {
  std::vector<PortHolder> holders;
  const auto add_from = [&](const char* table) {
    for (UdpSocket& socket : roce_sockets(table)) {
      if (socket.address != address && !is_any(socket.address)) continue;
      socket.holder.pid = find_owner(socket.holder.inode);
      holders.push_back(socket.holder);
    }
  };
  if (address.is_ipv4()) add_from("/proc/net/udp");
  add_from("/proc/net/udp6");  // a socket on [::] may hold the IPv4 port too
  return holders;
}

std::string name_of_process(pid_t pid) {
  std::string name;
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::getline(file, name);
  return name;
}

std::string describe(const PortHolder& holder) {
  if (holder.inode == 0) return "the kernel (rdma_rxe)";
  if (holder.pid == 0) return fmt::format("a process of user {}", user_name(holder.uid));
  return fmt::format("process {} ({})", holder.pid, name_of_process(holder.pid));
}

}  // namespace verbena::tool
