// XRC domains. All opens of the same file on the same device within this process share one domain,
// through any context.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "abi/verbs/context.h"
#include "abi/verbs/device_table.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"
#include "os/unique_fd.h"

namespace verbena::abi {
namespace {

struct FileDomain {
  const runtime::Nic* nic;  // kept alive by the domain's users, also in the child of a fork
  dev_t device;
  ino_t inode;
  os::UniqueFd file;  // held open, so that the inode number is not reused
  uint32_t id;
  int openers;
};

// Uses the device table's lock, which the fork handlers also cover.
struct TableLock {
  void lock() { lock_device_table(); }
  void unlock() { unlock_device_table(); }
};

std::list<FileDomain>& file_domains() {
  static auto& instance = *new std::list<FileDomain>;
  return instance;
}

// Never reused; 0 means none.
uint32_t next_id() {
  static std::atomic<uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// An own descriptor, opened as a path. Closing a plain copy would release the program's record
// locks on the file, and an open one would keep its flock(); a path descriptor does neither.
os::UniqueFd hold(int fd) {
  char link[32];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const int held = ::open(link, O_PATH | O_CLOEXEC);
  return os::UniqueFd(held >= 0 ? held : fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

Result<uint32_t> join_domain(const runtime::Nic* nic, int fd, int oflags) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return Error{EBADF, "fd is not an open file (-1: a private domain)"};
  TableLock table;
  const std::lock_guard lock(table);
  for (FileDomain& d : file_domains()) {
    if (d.nic != nic || d.device != file.st_dev || d.inode != file.st_ino) continue;
    if ((oflags & O_EXCL) != 0) {
      return Error{EINVAL, "this file already has an XRC domain, and O_EXCL requests a new one"};
    }
    ++d.openers;
    return uint32_t{d.id};
  }
  if ((oflags & O_CREAT) == 0) {
    return Error{EAGAIN, "this file has no XRC domain yet, and O_CREAT was not given"};
  }
  os::UniqueFd held = hold(fd);
  if (!held.valid()) return Error{errno, "cannot hold the file (too many open files?)"};
  file_domains().push_back({nic, file.st_dev, file.st_ino, std::move(held), next_id(), 1});
  return uint32_t{file_domains().back().id};
}

void leave_domain(uint32_t id) {
  TableLock table;
  const std::lock_guard lock(table);
  file_domains().remove_if([&](FileDomain& d) { return d.id == id && --d.openers == 0; });
}

Result<ibv_xrcd*> open(Context* context, const ibv_xrcd_init_attr& init) {
  if (context->nic->is_abandoned()) return kDead;
  constexpr uint32_t kNeeded = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if (init.comp_mask != kNeeded) {
    return Error{EINVAL, "comp_mask must be IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS"};
  }
  auto xrcd = std::make_unique<Xrcd>();
  if (init.fd == -1) {
    xrcd->domain = next_id();
  } else {
    auto joined = join_domain(context->nic.get(), init.fd, init.oflags);
    if (!joined.ok()) return joined.error();
    xrcd->domain = joined.value();
  }
  xrcd->context = &context->context;
  context->add_user();
  return xrcd.release();
}

Status close(Xrcd* xrcd) {
  if (xrcd->users.load() != 0) {
    return Error{EBUSY, "shared receive queues or queue pairs of this XRC domain remain"};
  }
  Context* context = from(xrcd->context);
  leave_domain(xrcd->domain);
  delete xrcd;
  context->drop_user();
  return {};
}

}  // namespace

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* init) {
  return object_of<ibv_xrcd>("ibv_open_xrcd", [&] { return open(from(context), *init); });
}

int close_xrcd(ibv_xrcd* xrcd) {
  return status_of("ibv_close_xrcd", [&] { return close(from(xrcd)); });
}

}  // namespace verbena::abi
