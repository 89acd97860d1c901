// Gives librdmacm the connection manager of an open device (version node VERBENA_PRIVATE_1).
#include "runtime/connection_manager.h"

#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

using namespace verbena;
using namespace verbena::abi;

extern "C" VERBENA_EXPORT runtime::ConnectionManager* verbena_connection_manager(
    ibv_context* context, uint32_t version) {
  using Manager = runtime::ConnectionManager;
  return object_of<Manager>("verbena_connection_manager", [&]() -> Result<Manager*> {
    if (version != runtime::kConnectionManagerVersion) {
      return Error{ENOSYS, "librdmacm.so.1 and libibverbs.so.1 are not of the same build"};
    }
    Manager* const manager = from(context)->nic->connection_manager();
    if (manager == nullptr) {
      return Error{EIO, "the device was opened before a fork; open it again in the child"};
    }
    return manager;
  });
}
