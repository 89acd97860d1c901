// The system calls of direct copies.
#include "datapath/shm/peer_memory.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/bytes.h"
#include "datapath/shm/handshake.h"
#include "os/no_cancel.h"

namespace verbena::datapath {
namespace {

constexpr size_t kMaxParts = 64;

// A word that a program may poll must be stored by one instruction. The kernel does that for words
// of eight bytes, and for shorter ones if the processor has fast short REP MOVSB. Otherwise it
// copies byte by byte.
bool stores_short_words_whole() {
#if defined(__x86_64__)
  static const bool fast_short_moves = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kFastShortRepMov = 1u << 4;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kFastShortRepMov) != 0;
  }();
  return fast_short_moves;
#else
  return true;
#endif
}

struct LocalParts {
  std::array<iovec, kMaxParts + 1> list;
  size_t count = 0;

  void add(uint64_t address, size_t bytes) {
    list[count++] = {reinterpret_cast<void*>(address), bytes};
  }
  void separate_last_word() {
    iovec& last = list[count - 1];
    const auto address = reinterpret_cast<uint64_t>(last.iov_base);
    const size_t width = last_word_bytes(address, last.iov_len);
    if (width == last.iov_len) return;
    last.iov_len -= width;
    add(address + last.iov_len, width);
  }
};

}  // namespace

PeerMemory::PeerMemory(pid_t process, PeerExposure exposure, int socket)
    : process_(process), socket_(socket), exposure_(std::move(exposure)) {}

bool PeerMemory::peer_has_ended() const {
  const os::NoCancel no_cancel;
  return socket_ >= 0 && is_hung_up(socket_);
}

bool PeerMemory::copy(const wire::OneSided& r, const wire::Gid& source,
                      const wire::Gid& destination, DirectCopy& copy) {
  const uint64_t address = exposure_.resolve(r, source, destination);
  if (address == 0 || r.local.size() > kMaxParts || peer_has_ended()) return false;
  const uint64_t placed_at = r.write ? address : reinterpret_cast<uint64_t>(r.local.front().data());
  const size_t word = last_word_bytes(placed_at, r.bytes);
  const bool is_short_word = r.bytes == word && (word == 2 || word == 4);
  if (is_short_word && !stores_short_words_whole()) return false;
  LocalParts here;
  for (const auto& span : r.local) here.add(reinterpret_cast<uint64_t>(span.data()), span.size());
  if (r.ends_message && !r.write) here.separate_last_word();
  if (!copy.aim(address, r.bytes, r.ends_message && r.write)) return false;
  // syscall(), because the C library's functions may be cancellation points.
  const long done = ::syscall(r.write ? SYS_process_vm_writev : SYS_process_vm_readv, process_,
                              here.list.data(), here.count, copy.parts(), copy.part_count(), 0);
  if (done == static_cast<long>(r.bytes)) [[likely]]
    return true;
  if (done < 0 && (errno == EPERM || errno == ENOSYS)) {
    denied_ = true;
    process_ = 0;
  }
  return false;
}

void permit_peers() {
  // EINVAL: the kernel has no such restriction.
  (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

}  // namespace verbena::datapath
