// Reads the kernel's list of Unix sockets (NETLINK_SOCK_DIAG) and finds the processes that have
// them open.
#include "host/slot_holders.h"

#include <dirent.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "host/slot_directory.h"
#include "os/unique_fd.h"

namespace verbena::host {
namespace {

// From Linux 5.3. Older headers lack these constants; older kernels omit the attribute.
constexpr uint32_t kShowUid = 0x40;
constexpr uint16_t kUidAttribute = 7;
constexpr size_t kReadBytes = size_t{64} * 1024;

struct Socket {
  uint32_t inode = 0;
  uid_t uid = 0;
  uint8_t slot = 0;
};

bool ask_for_sockets(int fd) {
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } message{};
  message.header.nlmsg_len = sizeof message;
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  message.request.sdiag_family = AF_UNIX;
  message.request.udiag_states = UINT32_MAX;
  message.request.udiag_show = UDIAG_SHOW_NAME | kShowUid;
  return ::send(fd, &message, sizeof message, 0) == sizeof message;
}

// Reads one message of the kernel's reply. Returns whether it describes the socket of a slot.
bool is_slot(const nlmsghdr* message, Socket& to) {
  const auto* body = static_cast<const unix_diag_msg*>(NLMSG_DATA(message));
  to.inode = body->udiag_ino;
  auto left = static_cast<int>(message->nlmsg_len - NLMSG_LENGTH(sizeof *body));
  const auto* attribute = reinterpret_cast<const rtattr*>(body + 1);
  for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
    const auto* data = static_cast<const char*>(RTA_DATA(attribute));
    const std::string_view value(data, RTA_PAYLOAD(attribute));
    if (attribute->rta_type == UNIX_DIAG_NAME) to.slot = slot_of_name(value);
    if (attribute->rta_type == kUidAttribute && value.size() == sizeof to.uid) {
      std::memcpy(&to.uid, data, sizeof to.uid);
    }
  }
  return to.slot != 0;
}

std::vector<Socket> slot_sockets() {
  std::vector<Socket> found;
  const os::UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd.valid() || !ask_for_sockets(fd.get())) return found;
  // Not thread-local: each thread of the program would give this much of its stack.
  const auto buffer = std::make_unique<char[]>(kReadBytes);
  for (;;) {
    const ssize_t n = ::recv(fd.get(), buffer.get(), kReadBytes, 0);
    if (n <= 0) return found;
    auto left = static_cast<unsigned>(n);
    const auto* message = reinterpret_cast<const nlmsghdr*>(buffer.get());
    for (; NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type != SOCK_DIAG_BY_FAMILY) return found;  // the end, or an error
      Socket socket;
      if (is_slot(message, socket)) found.push_back(socket);
    }
  }
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using Folder = std::unique_ptr<DIR, CloseFolder>;

// Calls on_socket(inode) for each visible open socket of the process.
void for_each_socket_of(pid_t pid, auto on_socket) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd";
  const Folder folder(::opendir(path.c_str()));
  if (!folder) return;
  while (const dirent* entry = ::readdir(folder.get())) {
    char target[64] = {};
    unsigned inode = 0;
    if (::readlinkat(::dirfd(folder.get()), entry->d_name, target, sizeof target - 1) > 0 &&
        std::sscanf(target, "socket:[%u]", &inode) == 1) {
      on_socket(inode);
    }
  }
}

}  // namespace

std::vector<HeldSlot> held_slots() {
  std::vector<HeldSlot> held;
  std::unordered_map<uint32_t, size_t> by_inode;
  for (const Socket& socket : slot_sockets()) {
    by_inode[socket.inode] = held.size();
    held.push_back({socket.uid, 0, socket.slot});
  }
  const Folder proc(::opendir("/proc"));
  while (const dirent* entry = proc ? ::readdir(proc.get()) : nullptr) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    for_each_socket_of(pid, [&](uint32_t inode) {
      if (const auto it = by_inode.find(inode); it != by_inode.end()) held[it->second].pid = pid;
    });
  }
  return held;
}

std::string describe(std::span<const HeldSlot> slots) {
  constexpr size_t kMaxNamed = 5;
  std::map<uid_t, std::map<pid_t, size_t>> by_user;
  for (const HeldSlot& slot : slots) ++by_user[slot.uid][slot.pid];
  const auto by_count = [](const auto& counts) {
    std::vector<std::pair<size_t, uint32_t>> sorted;
    for (const auto& [id, count] : counts) sorted.emplace_back(count, static_cast<uint32_t>(id));
    std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.first > b.first; });
    return sorted;
  };
  std::map<uid_t, size_t> totals;
  for (const HeldSlot& slot : slots) ++totals[slot.uid];
  std::string text;
  for (const auto& [total, uid] : by_count(totals)) {
    text +=
        (text.empty() ? "user " : "; user ") + std::to_string(uid) + ": " + std::to_string(total);
    std::string processes;
    size_t named = 0;
    for (const auto& [count, pid] : by_count(by_user[uid])) {
      if (pid == 0 || named++ == kMaxNamed) continue;
      processes += (processes.empty() ? "process " : ", process ") + std::to_string(pid) + ": " +
                   std::to_string(count);
    }
    if (!processes.empty()) text += " (" + processes + (named > kMaxNamed ? ", ..." : "") + ")";
  }
  return text;
}

}  // namespace verbena::host
