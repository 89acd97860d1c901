// Copying between processes.
#include "datapath/shm/peer_memory.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/bytes.h"
#include "datapath/no_cancel.h"
#include "datapath/shm/hello.h"

namespace verbena::datapath {
namespace {

constexpr size_t kMostPieces = 64;

// What a program may spin on comes last, by a copy of its own. A word is stored as one.
bool is_stored_whole(uint64_t address, size_t bytes) {
  return last_word_bytes(address, bytes) == bytes;
}

struct Pieces {
  std::array<iovec, kMostPieces + 1> list;
  size_t count = 0;

  void add(uint64_t address, size_t bytes) {
    list[count++] = {reinterpret_cast<void*>(address), bytes};
  }
  void set_last_word_apart() {
    iovec& last = list[count - 1];
    const auto address = reinterpret_cast<uint64_t>(last.iov_base);
    const size_t width = last_word_bytes(address, last.iov_len);
    if (width == last.iov_len) return;
    last.iov_len -= width;
    add(address + last.iov_len, width);
  }
};

// Where /proc is another PID namespace's, a number there is another process.
bool proc_is_ours() {
  char link[16]{};
  const ssize_t n = ::readlink("/proc/self", link, sizeof link - 1);
  return n > 0 && std::atoi(link) == ::getpid();
}

}  // namespace

PeerMemory::PeerMemory(pid_t process, PeerExposure exposure, int socket)
    : process_(process), socket_(socket), exposure_(std::move(exposure)) {
  if (!reachable() || !proc_is_ours()) return;
  char name[32];
  std::snprintf(name, sizeof name, "/proc/%d/mem", process);
  file_ = UniqueFd(::open(name, O_RDWR | O_CLOEXEC));
}

bool PeerMemory::gone() const {
  const NoCancel no_cancel;
  return socket_ >= 0 && hung_up(socket_);
}

// System calls by number: the library's functions may be points of cancellation.
long PeerMemory::copy_short(bool write, const std::span<const std::byte>& here,
                            uint64_t there) const {
  return ::syscall(write ? SYS_pwrite64 : SYS_pread64, file_.get(), here.data(), here.size(),
                   there);
}

bool PeerMemory::copy(const wire::OneSided& r, const wire::Gid& source,
                      const wire::Gid& destination) {
  const uint64_t address = exposure_.resolve(r, source, destination);
  if (address == 0 || r.local.size() > kMostPieces) return false;
  // Nothing of it is seen before the rest.
  const uint64_t placed_at = r.write ? address : reinterpret_cast<uint64_t>(r.local.front().data());
  if (r.local.size() == 1 && file_.valid() && is_stored_whole(placed_at, r.bytes)) {
    return copy_short(r.write, r.local.front(), address) == static_cast<long>(r.bytes);
  }
  if (gone()) return false;
  Pieces here, there;
  for (const auto& span : r.local) here.add(reinterpret_cast<uint64_t>(span.data()), span.size());
  there.add(address, r.bytes);
  if (r.ends_message) (r.write ? there : here).set_last_word_apart();
  const long done = ::syscall(r.write ? SYS_process_vm_writev : SYS_process_vm_readv, process_,
                              here.list.data(), here.count, there.list.data(), there.count, 0);
  if (done == static_cast<long>(r.bytes)) [[likely]]
    return true;
  if (done < 0 && (errno == EPERM || errno == ENOSYS)) {
    denied_ = true;
    process_ = 0;
  }
  return false;
}

void permit_peers() {
  // Their kernel says EINVAL where it restricts nothing.
  (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

}  // namespace verbena::datapath
