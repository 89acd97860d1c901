// Compares users by the credentials that the kernel reports, the overflow uid and the user
// namespace's map.
#include "host/same_user.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>

#include "os/unique_fd.h"

namespace verbena::host {
namespace {

struct SmallFile {
  explicit SmallFile(const char* path) {
    const os::UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
    if (fd.valid()) (void)!::read(fd.get(), text.data(), text.size() - 1);
  }
  std::array<char, 128> text{};
};

uid_t read_overflow_uid() {
  constexpr uid_t kUsual = 65534;
  uid_t uid = kUsual;
  const SmallFile file("/proc/sys/kernel/overflowuid");
  return std::sscanf(file.text.data(), "%u", &uid) == 1 ? uid : kUsual;
}

// True if the first line of the map maps uid 0 and all following ones to themselves.
bool all_users_are_mapped() {
  const SmallFile file("/proc/self/uid_map");
  uint32_t inside = 0, outside = 0, count = 0;
  constexpr uint32_t kAll = UINT32_MAX;  // the last number is not a valid uid
  return std::sscanf(file.text.data(), "%" SCNu32 " %" SCNu32 " %" SCNu32, &inside, &outside,
                     &count) == 3 &&
         inside == 0 && outside == 0 && count == kAll;
}

}  // namespace

bool is_own_user(uid_t uid) {
  static const uid_t overflow_uid = read_overflow_uid();
  return uid == ::geteuid() && (uid != overflow_uid || all_users_are_mapped());
}

bool peer_is_own_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && is_own_user(peer.uid);
}

}  // namespace verbena::host
