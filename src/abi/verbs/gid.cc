// The GID table (the interface's addresses) and the partition table (one entry: the default).
#include <arpa/inet.h>

#include <cstring>

#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"
#include "abi/verbs/private_nodes.h"

namespace verbena::abi {
namespace {

constexpr uint16_t kDefaultPkey = 0xFFFF;

Status check(uint32_t port, int64_t index, int64_t table_size) {
  if (port != 1) return Error{EINVAL, "the device has port 1 only"};
  if (index < 0 || index >= table_size) return Error{EINVAL, "the index is beyond the table"};
  return {};
}

ibv_gid to_public(const wire::Gid& gid) {
  ibv_gid to{};
  std::memcpy(to.raw, gid.bytes.data(), sizeof to.raw);
  return to;
}

ibv_gid_entry entry_of(Context* context, uint32_t index, const wire::Gid& gid) {
  return {.gid = to_public(gid),
          .gid_index = index,
          .port_num = 1,
          .gid_type = IBV_GID_TYPE_ROCE_V2,
          .ndev_ifindex = context->nic->device().interface_index};
}

// Entries have the size that the caller's headers define.
Status check_shape(uint32_t flags, size_t entry_bytes) {
  if (flags != 0) return Error{EINVAL, "flags must be 0"};
  if (entry_bytes < sizeof(ibv_gid_entry)) return Error{EINVAL, "the structure is too small"};
  return {};
}

void store(void* to, const ibv_gid_entry& entry, size_t entry_bytes) {
  std::memset(to, 0, entry_bytes);
  std::memcpy(to, &entry, sizeof entry);
}

Status list_gids(Context* context, void* entries, size_t max_entries, size_t entry_bytes,
                 ssize_t* count) {
  auto* to = static_cast<std::byte*>(entries);
  size_t n = 0;
  for (uint32_t i = 0; i < runtime::GidTable::kSize; ++i) {
    const wire::Gid gid = context->nic->gid(i);
    if (gid.is_zero()) continue;
    if (n == max_entries) return Error{EINVAL, "there are more GIDs than max_entries"};
    store(to + n++ * entry_bytes, entry_of(context, i, gid), entry_bytes);
  }
  *count = static_cast<ssize_t>(n);
  return {};
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

// An empty entry is the zero GID, not an error.
VERBENA_EXPORT int ibv_query_gid(ibv_context* context, uint8_t port_num, int index, ibv_gid* gid) {
  const int code = status_of("ibv_query_gid", [&]() -> Status {
    Context* c = from(context);
    const Status checked = check(port_num, index, runtime::GidTable::kSize);
    if (checked.ok()) *gid = to_public(c->nic->gid(static_cast<size_t>(index)));
    return checked;
  });
  return code == 0 ? 0 : -1;
}

VERBENA_EXPORT int _ibv_query_gid_ex(ibv_context* context, uint32_t port_num, uint32_t gid_index,
                                     ibv_gid_entry* entry, uint32_t flags, size_t entry_size) {
  return status_of("ibv_query_gid_ex", [&]() -> Status {
    Context* c = from(context);
    Status checked = check(port_num, gid_index, runtime::GidTable::kSize);
    if (checked.ok()) checked = check_shape(flags, entry_size);
    if (!checked.ok()) return checked;
    const wire::Gid gid = c->nic->gid(gid_index);
    if (gid.is_zero()) return Error{ENODATA, "the entry is empty"};
    store(entry, entry_of(c, gid_index, gid), entry_size);
    return {};
  });
}

VERBENA_EXPORT ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                            size_t max_entries, uint32_t flags, size_t entry_size) {
  ssize_t count = 0;
  const int code = status_of("ibv_query_gid_table", [&]() -> Status {
    const Status shape = check_shape(flags, entry_size);
    if (!shape.ok()) return shape;
    return list_gids(from(context), entries, max_entries, entry_size, &count);
  });
  return code == 0 ? count : -code;
}

// For ibv_devinfo; the numbers are those of sysfs, where RoCE v2 is 1.
int private_ibv_query_gid_type(ibv_context*, uint8_t port_num, unsigned int index,
                               unsigned int* type) {
  const int code = status_of("ibv_query_gid_type", [&]() -> Status {
    const Status checked = check(port_num, index, runtime::GidTable::kSize);
    if (checked.ok()) *type = 1;
    return checked;
  });
  return code == 0 ? 0 : -1;
}

VERBENA_EXPORT int ibv_query_pkey(ibv_context*, uint8_t port_num, int index, __be16* pkey) {
  const int code = status_of("ibv_query_pkey", [&]() -> Status {
    const Status checked = check(port_num, index, 1);
    if (checked.ok()) *pkey = htons(kDefaultPkey);
    return checked;
  });
  return code == 0 ? 0 : -1;
}

VERBENA_EXPORT int ibv_get_pkey_index(ibv_context*, uint8_t port_num, __be16 pkey) {
  const int code = status_of("ibv_get_pkey_index", [&]() -> Status {
    const Status checked = check(port_num, 0, 1);
    if (!checked.ok()) return checked;
    if (ntohs(pkey) != kDefaultPkey) return Error{EINVAL, "the only partition key is 0xffff"};
    return {};
  });
  return code == 0 ? 0 : -1;
}

}  // extern "C"

VERBENA_SINCE_34(ibv_query_gid_type)
