// Importing: a second context for an open device, by its command descriptor, and further handles
// for its protection domains, memory regions and device memory. With a kernel driver, processes
// share objects in this way. Here the objects are in the process that created them, so importing
// works within that process only.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

bool is_command_descriptor(int fd) {
  char link[32], target[64] = "";
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, target, sizeof target - 1) < 0) return false;
  return std::strstr(target, kCommandFileName) != nullptr;
}

Result<ibv_context*> import_device(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return Error{EBADF, "not an open descriptor"};
  Device* device = device_of_command_file(file.st_ino);
  if (device != nullptr) return open_context(device, fd);
  if (is_command_descriptor(fd)) {
    return Error{EOPNOTSUPP,
                 "the device is open in another process, and objects cannot leave their process"};
  }
  return Error{EINVAL, "not the cmd_fd of an open device"};
}

Result<ibv_pd*> import_pd(Context* context, uint32_t handle) {
  if (context->nic->is_abandoned()) return kDead;
  auto imported = std::make_unique<Pd>();
  imported->context = &context->context;
  imported->handle = imported->id = handle;
  imported->kind = Pd::Kind::Imported;
  imported->stands_for = use_pd(*context, handle);
  if (imported->stands_for == nullptr) {
    return Error{EINVAL, "the device of cmd_fd has no such protection domain"};
  }
  context->add_user();
  return imported.release();
}

Result<ibv_mr*> import_mr(Pd* pd, uint32_t handle) {
  Context* context = from(pd->context);
  if (context->nic->is_abandoned()) return kDead;
  auto mr = std::make_unique<Mr>();
  const auto region = context->nic->memory().region_of(handle);
  if (!region || region->pd != pd->id) {
    return Error{EINVAL, "the protection domain has no such memory region"};
  }
  mr->length = region->length;
  // addr stays null, as documented: it may have no meaning for the importer.
  mr->kind = Mr::Kind::Imported;
  mr->handle = mr->lkey = mr->rkey = handle;
  mr->context = pd->context;
  mr->pd = pd;
  pd->add_user();
  context->add_user();
  return mr.release();
}

Result<ibv_dm*> import_dm(Context* context, uint32_t handle) {
  if (context->nic->is_abandoned()) return kDead;
  auto imported = std::make_unique<Dm>();
  Dm* original = use_dm(*context, handle);
  if (original == nullptr) {
    return Error{EINVAL, "the device of cmd_fd has no such device memory"};
  }
  static_cast<ibv_dm&>(*imported) = static_cast<const ibv_dm&>(*original);
  imported->context = &context->context;
  imported->memory = original->memory;
  imported->length = original->length;
  imported->fd = original->fd;
  imported->stands_for = original;
  context->add_user();
  return imported.release();
}

// The import ends even if objects created on it remain: they keep the structure that their `pd`
// points to, and the domain's number, which is never reused. The original domain does not wait for
// them.
void unimport_pd(Pd* pd) {
  if (pd->kind != Pd::Kind::Imported) {
    ibv_dealloc_pd(pd);
    return;
  }
  pd->stands_for->drop_user();
  pd->stands_for = nullptr;
  pd->drop_user();
}

// Regions on it keep the memory, and thereby the original.
void unimport_dm(Dm* dm) {
  if (dm->stands_for != nullptr) {
    dm->drop_user();
  } else {
    free_dm(dm);
  }
}

void unimport_mr(Mr* mr) {
  Context* context = from(mr->context);
  from(mr->pd)->drop_user();
  delete mr;
  context->drop_user();
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT ibv_context* ibv_import_device(int cmd_fd) {
  return object_of<ibv_context>("ibv_import_device", [&] { return import_device(cmd_fd); });
}

VERBENA_EXPORT ibv_pd* ibv_import_pd(ibv_context* context, uint32_t pd_handle) {
  return object_of<ibv_pd>("ibv_import_pd", [&] { return import_pd(from(context), pd_handle); });
}

VERBENA_EXPORT void ibv_unimport_pd(ibv_pd* pd) { unimport_pd(from(pd)); }

VERBENA_EXPORT ibv_mr* ibv_import_mr(ibv_pd* pd, uint32_t mr_handle) {
  return object_of<ibv_mr>("ibv_import_mr", [&] { return import_mr(from(pd), mr_handle); });
}

VERBENA_EXPORT void ibv_unimport_mr(ibv_mr* mr) { unimport_mr(from(mr)); }

VERBENA_EXPORT ibv_dm* ibv_import_dm(ibv_context* context, uint32_t dm_handle) {
  return object_of<ibv_dm>("ibv_import_dm", [&] { return import_dm(from(context), dm_handle); });
}

VERBENA_EXPORT void ibv_unimport_dm(ibv_dm* dm) { unimport_dm(from(dm)); }

}  // extern "C"
