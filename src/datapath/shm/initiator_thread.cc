// Reads the state of a thread from /proc/PID/task/TID.
#include "datapath/shm/initiator_thread.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "os/unique_fd.h"

namespace verbena::datapath {
namespace {

// A copy of 64 KiB takes microseconds. The limit allows for interrupts, and for stolen time that
// some hypervisors count as CPU time.
constexpr uint64_t kLongestCopyNs = 50'000'000;

// The start of a file in /proc.
struct ProcFile {
  std::array<char, 1024> buffer;
  std::string_view text;
  int error = 0;

  ProcFile(pid_t process, pid_t thread, const char* name) {
    std::array<char, 64> path;
    std::snprintf(path.data(), path.size(), "/proc/%d/task/%d/%s", process, thread, name);
    const os::UniqueFd fd(::open(path.data(), O_RDONLY | O_CLOEXEC));
    const ssize_t n = fd.valid() ? ::read(fd.get(), buffer.data(), buffer.size()) : -1;
    if (n < 0) {
      error = errno;
    } else {
      text = {buffer.data(), static_cast<size_t>(n)};
    }
  }
};

// If /proc belongs to another PID namespace, a PID there is another process.
bool proc_is_ours() {
  std::array<char, 16> link{};
  const ssize_t n = ::readlink("/proc/self", link.data(), link.size() - 1);
  return n > 0 && std::atoi(link.data()) == ::getpid();
}

bool is_gone(pid_t process, int error) {
  if (error == ESRCH) return true;
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "/proc/%d", process);
  return error == ENOENT &&
         ::access(path.data(), F_OK) == 0;  // otherwise /proc may be hiding the process (hidepid)
}

// Checks the state letter after the name, which may contain any characters: stopped, traced, ended.
bool is_halted(std::string_view stat) {
  const size_t name_end = stat.rfind(')');
  return name_end != stat.npos && name_end + 2 < stat.size() &&
         std::string_view("TtZXx").find(stat[name_end + 2]) != std::string_view::npos;
}

// The kernel functions in which a frozen thread waits: the freezer of cgroup v2 (which compilers
// inline into get_signal) and of v1. Both run on the return to user space.
bool is_frozen(std::string_view wchan) {
  return wchan.starts_with("do_freezer_trap") || wchan.starts_with("get_signal") ||
         wchan.starts_with("__refrigerator");
}

// The file contains "running", or the number of the system call in which the thread sleeps (-1:
// none).
std::optional<long> system_call_slept_in(std::string_view text) {
  long number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<uint64_t> InitiatorThread::cpu_time_ns() const {
  const ProcFile file(process_, thread_, "schedstat");
  uint64_t ns = 0;
  const auto parsed = std::from_chars(file.text.data(), file.text.data() + file.text.size(), ns);
  if (file.error != 0 || parsed.ec != std::errc()) return std::nullopt;
  return ns;
}

bool InitiatorThread::may_be_copying() {
  if (process_ <= 0 || !proc_is_ours()) return true;
  const ProcFile stat(process_, thread_, "stat");
  if (stat.error != 0) return !is_gone(process_, stat.error);
  if (is_halted(stat.text)) return false;
  const ProcFile call(process_, thread_, "syscall");
  if (const auto number = system_call_slept_in(call.text)) {
    if (*number != SYS_process_vm_writev && *number != SYS_process_vm_readv) return false;
    // Threads are frozen on the way out of a system call, whose number /proc still shows.
    if (is_frozen(ProcFile(process_, thread_, "wchan").text)) return false;
  }
  const auto now = cpu_time_ns();
  if (!first_cpu_time_ns_) first_cpu_time_ns_ = now;
  return !now || *now - *first_cpu_time_ns_ <= kLongestCopyNs;
}

}  // namespace verbena::datapath
