// Checks of what the kernel permits, by trying it or, where that is impossible, by reading its
// settings.
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

// The errno of an attempt to attach a steering program.
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

// Uses a child process: if the kernel's BPF memory is deadlocked, the call never returns.
Finding examine_steering() {
  constexpr const char* kAbout = "steering";
  constexpr const char* kOtherwise =
      "Processes on one address then forward packets to each other: this is slower, and a stopped "
      "process delays the others";
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {Verdict::Hint, kAbout, "cannot be tested: no pipe"};
  const UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return {Verdict::Hint, kAbout, "cannot be tested: no process"};
  if (child == 0) {
    const int error = attach_program();
    (void)!::write(out.get(), &error, sizeof error);
    ::_exit(0);
  }
  out.reset();
  pollfd reply{in.get(), POLLIN, 0};
  int error = EINTR;
  if (::poll(&reply, 1, 3000) <= 0) {
    return {Verdict::Problem, kAbout,
            "the kernel's BPF is stuck: a process that attaches a program waits forever. Restart "
            "the machine; until then set VERBENA_STEERING=off"};
  }
  (void)!::read(in.get(), &error, sizeof error);
  ::waitpid(child, nullptr, 0);
  if (error == 0) return {Verdict::Good, kAbout, "the kernel delivers each packet to its process"};
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

// Yama's setting; -1 if Yama is not active: then a process may access those of the same user.
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
                      "other's registered memory, so WRITEs and READs between them are slower. As "
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

// Verbena has no files there, but the programs that run on it do.
Finding examine_dev_shm() {
  constexpr const char* kAbout = "/dev/shm";
  constexpr uint64_t kEnough = 64 * kMegabyte;
  struct statvfs status {};
  if (::statvfs(kAbout, &status) != 0 || ::access(kAbout, W_OK) != 0) {
    return {Verdict::Hint, kAbout,
            "does not exist or is not writable: Verbena does not need it, but MPI, UCX and NCCL "
            "do. As root: mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 tmpfs /dev/shm"};
  }
  const uint64_t left = uint64_t{status.f_bavail} * status.f_frsize;
  if (left < kEnough) {
    return {Verdict::Hint, kAbout,
            fmt::format("has only {} MiB left: Verbena does not need it, but MPI, UCX and NCCL do. "
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
          fmt::format("limited to {} KiB. Verbena pins no memory, so the limit does not affect it. "
                      "A program that locks more memory itself needs: ulimit -l unlimited",
                      limit.rlim_cur / 1024)};
}

}  // namespace

Findings examine_kernel() {
  return {examine_steering(), examine_slots(),   examine_ptrace(),
          examine_memfd(),    examine_dev_shm(), examine_locked_memory()};
}

}  // namespace verbena::tool
