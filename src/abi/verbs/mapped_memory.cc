// Checks memory with madvise(MADV_POPULATE_*), which faults pages in and checks permissions at
// once. Where that does not exist (before Linux 5.14, gVisor), it reads the mappings from /proc.
#include "abi/verbs/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "os/no_cancel.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace verbena::abi {
namespace {

constexpr Error kNotMapped{
    EFAULT,
    "part of the memory is not mapped, or not writable although the access flags request it"};

bool kernel_populates() {
  static const bool yes = madvise(nullptr, 0, MADV_POPULATE_READ) == 0;
  return yes;
}

// Walks the process's mappings, which /proc lists by ascending address.
bool is_mapped(uintptr_t begin, uintptr_t end, bool write) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(fopen("/proc/self/maps", "re"), fclose);
  if (maps == nullptr) return true;  // the check is not possible
  char line[512];
  bool line_start = true;
  uintptr_t covered = begin;
  while (covered < end && fgets(line, sizeof line, maps.get()) != nullptr) {
    const bool whole = line_start;
    line_start = false;
    for (const char* c = line; *c != 0; ++c) line_start = *c == '\n';
    unsigned long from = 0, to = 0;
    char rights[5] = "";
    if (!whole || sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3) continue;
    if (to <= covered) continue;
    if (from > covered || rights[0] != 'r' || (write && rights[1] != 'w')) return false;
    covered = to;
  }
  return covered >= end;
}

}  // namespace

Status check_memory(uintptr_t address, uint64_t length, bool write, Presence presence) {
  if (length == 0) return {};
  const os::NoCancel no_cancel;  // also called while a packet is handled
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = address & ~(page - 1);
  const uintptr_t end = (address + length + page - 1) & ~(page - 1);
  if (end <= begin) return kNotMapped;  // rounding up exceeded the address space
  if (presence == Presence::Mapped || !kernel_populates()) {
    if (!is_mapped(begin, end, write)) return kNotMapped;
    return {};
  }
  const int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  int error = 0;
  do {
    error = madvise(reinterpret_cast<void*>(begin), end - begin, advice) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error == 0) return {};
  // ENOMEM means a hole in the range, or a real shortage of memory.
  if (error == ENOMEM && is_mapped(begin, end, write)) {
    return Error{ENOMEM, "there is not enough memory for all pages of the region"};
  }
  return kNotMapped;
}

}  // namespace verbena::abi
