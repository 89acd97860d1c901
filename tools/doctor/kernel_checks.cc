// What the kernel permits, found by trying it; where that is not possible, by reading its settings.
#include <fcntl.h>
#include <linux/filter.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include <fmt/core.h>

#include "datapath/shm/segment.h"
#include "host/slot_directory.h"
#include "os/unique_fd.h"
#include "tools/doctor/findings.h"

namespace verbena::tool {
namespace {

using os::UniqueFd;

constexpr uint64_t kMegabyte = 1 << 20;

// The errno of giving the kernel a steering program.
int attach_program() {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sock_filter first_socket[] = {{BPF_RET | BPF_K, 0, 0, 0}};
  const sock_fprog program{1, first_socket};
  const bool attached =
      fd.valid() && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0 &&
      ::setsockopt(fd.get(), SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) == 0;
  return attached ? 0 : errno;
}

// Tried by a process of its own: a kernel whose BPF memory is deadlocked never lets it go.
Finding examine_steering() {
  constexpr const char* kAbout = "steering";
  constexpr const char* kOtherwise =
      "Packets for several processes on one address are then passed on from one to the other: "
      "slower, and a process that is stopped holds up others";
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {Verdict::Hint, kAbout, "cannot be tried: no pipe"};
  const UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return {Verdict::Hint, kAbout, "cannot be tried: no process"};
  if (child == 0) {
    const int error = attach_program();
    (void)!::write(out.get(), &error, sizeof error);
    ::_exit(0);
  }
  out.reset();
  pollfd answer{in.get(), POLLIN, 0};
  int error = EINTR;
  if (::poll(&answer, 1, 3000) <= 0) {
    return {Verdict::Problem, kAbout,
            "the kernel's BPF is stuck: whoever gives it a program waits for ever. Restart the "
            "machine; until then set VERBENA_STEERING=off"};
  }
  (void)!::read(in.get(), &error, sizeof error);
  ::waitpid(child, nullptr, 0);
  if (error == 0) return {Verdict::Good, kAbout, "the kernel gives each process its packets"};
  return {Verdict::Hint, kAbout,
          fmt::format("the kernel refuses BPF programs ({}), as some sandboxes do. {}",
                      std::strerror(error), kOtherwise)};
}

Finding examine_slots() {
  constexpr size_t kAll = host::kLastSlot - host::kFirstSlot + 1;
  const size_t taken = host::SlotDirectory::query_all(milliseconds(200)).size();
  std::string text = fmt::format("{} of this network namespace's {} are taken", taken, kAll);
  if (taken == kAll) {
    return {Verdict::Problem, "process slots",
            text +
                ": no further process can open a device. End some (verbena counters lists "
                "them), or use another network namespace"};
  }
  return {taken > kAll * 9 / 10 ? Verdict::Hint : Verdict::Good, "process slots", text};
}

// Yama's setting; -1 where there is none, and everybody may look at their own processes.
int ptrace_scope() {
  int scope = -1;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope;
}

Finding examine_ptrace() {
  const int scope = ptrace_scope();
  constexpr const char* kAbout = "ptrace scope";
  if (scope <= 1) {
    return {Verdict::Good, kAbout,
            "processes of one user may reach each other's registered memory directly"};
  }
  return {Verdict::Hint, kAbout,
          fmt::format("kernel.yama.ptrace_scope is {}: processes of this host cannot reach each "
                      "other's registered memory, so that one-sided operations take a detour. As "
                      "root: sysctl -w kernel.yama.ptrace_scope=1{}",
                      scope, scope == 3 ? " (after a restart: 3 cannot be undone)" : "")};
}

Finding examine_memfd() {
  constexpr const char* kAbout = "shared memory";
  UniqueFd fd;
  const auto made = datapath::Segment::create(fd);
  if (made.ok()) return {Verdict::Good, kAbout, "processes of this host can share memory (memfd)"};
  return {Verdict::Hint, kAbout,
          fmt::format("{} ({}): packets between processes of this host go over UDP",
                      made.error().why, std::strerror(made.error().code))};
}

// Verbena itself has no files there; what people run on it does.
Finding examine_dev_shm() {
  constexpr const char* kAbout = "/dev/shm";
  constexpr uint64_t kEnough = 64 * kMegabyte;
  struct statvfs status {};
  if (::statvfs(kAbout, &status) != 0 || ::access(kAbout, W_OK) != 0) {
    return {Verdict::Hint, kAbout,
            "is not there or not writable: Verbena does without, but MPI, UCX and NCCL do not. As "
            "root: mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 tmpfs /dev/shm"};
  }
  const uint64_t left = uint64_t{status.f_bavail} * status.f_frsize;
  if (left < kEnough) {
    return {Verdict::Hint, kAbout,
            fmt::format("has only {} MiB left: Verbena needs none of it, but MPI, UCX and NCCL do. "
                        "Make it larger (docker run --shm-size=1g; as root: mount -o "
                        "remount,size=1g /dev/shm)",
                        left / kMegabyte)};
  }
  return {Verdict::Good, kAbout, fmt::format("{} MiB left", left / kMegabyte)};
}

Finding examine_locked_memory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {Verdict::Good, "locked memory", "unlimited"};
  return {Verdict::Good, "locked memory",
          fmt::format("limited to {} KiB, which is no limit to Verbena: it pins nothing. A program "
                      "that asks for more itself wants: ulimit -l unlimited",
                      limit.rlim_cur / 1024)};
}

}  // namespace

Findings examine_kernel() {
  return {examine_steering(), examine_slots(),   examine_ptrace(),
          examine_memfd(),    examine_dev_shm(), examine_locked_memory()};
}

}  // namespace verbena::tool
