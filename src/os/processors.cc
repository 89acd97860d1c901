// CPU affinity, and the quotas of the cgroups (version 2).
#include "os/processors.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>

#include "os/unique_fd.h"

namespace verbena::os {
namespace {

std::string content_of(const std::string& path) {
  std::string text(4096, '\0');
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t bytes = fd.valid() ? ::read(fd.get(), text.data(), text.size()) : 0;
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return text;
}

// The path of this process's cgroup below the mount point; empty: the root, or version 1.
std::string own_cgroup() {
  const std::string text = content_of("/proc/self/cgroup");
  const size_t at = text.find("0::/");
  if (at == std::string::npos) return {};
  const size_t begin = at + 3;
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

std::optional<size_t> parse_cpu_quota(std::string_view text) {
  const char* const end = text.data() + text.size();
  uint64_t quota = 0;
  uint64_t period = 0;
  const auto first = std::from_chars(text.data(), end, quota);
  if (first.ec != std::errc{} || first.ptr == end) return std::nullopt;  // "max 100000"
  const auto second = std::from_chars(first.ptr + 1, end, period);
  if (second.ec != std::errc{} || period == 0) return std::nullopt;
  return std::max<size_t>(1, quota / period + (quota % period != 0 ? 1 : 0));
}

cpu_set_t process_affinity() {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return all;  // more than a cpu_set_t holds
  DIR* const threads = ::opendir("/proc/self/task");
  if (threads == nullptr) return all;
  while (const dirent* const entry = ::readdir(threads)) {
    pid_t thread = 0;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, thread).ptr != end) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    if (::sched_getaffinity(thread, sizeof one, &one) == 0) CPU_OR(&all, &all, &one);
  }
  ::closedir(threads);
  return all;
}

size_t usable_processors() {
  const cpu_set_t set = process_affinity();
  auto processors = static_cast<size_t>(CPU_COUNT(&set));
  if (processors == 0) {
    processors = static_cast<size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  }
  // Each parent's quota limits the process too.
  for (std::string group = own_cgroup();; group.resize(group.rfind('/'))) {
    const auto quota = parse_cpu_quota(content_of("/sys/fs/cgroup" + group + "/cpu.max"));
    if (quota) processors = std::min(processors, *quota);
    if (group.empty() || group.rfind('/') == std::string::npos) break;
  }
  return processors;
}

}  // namespace verbena::os
