// rdma_getaddrinfo and its relatives. The C library resolves the names.
#include <netdb.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/id.h"
#include "abi/verbs/c_enum.h"
#include "runtime/log.h"

namespace verbena::rdmacm {
namespace {

// Flags of newer headers.
constexpr int kFlagSa = 0x10;   // query an InfiniBand subnet administrator
constexpr int kFlagDns = 0x20;  // resolve names; this is the default

struct FreeAddrinfo {
  void operator()(rdma_addrinfo* info) const { rdma_freeaddrinfo(info); }
};
using OwnAddrinfo = std::unique_ptr<rdma_addrinfo, FreeAddrinfo>;

// Freed with free(), because programs allocate some of these themselves.
Status copy(const sockaddr* from, socklen_t size, sockaddr*& to, socklen_t& to_size) {
  to = static_cast<sockaddr*>(std::malloc(size));
  if (to == nullptr) return abi::kNoMemory;
  std::memcpy(to, from, size);
  to_size = size;
  return {};
}

addrinfo plain_hints(const rdma_addrinfo& hints) {
  addrinfo plain{};
  if ((hints.ai_flags & RAI_PASSIVE) != 0) plain.ai_flags |= AI_PASSIVE;
  if ((hints.ai_flags & RAI_NUMERICHOST) != 0) plain.ai_flags |= AI_NUMERICHOST;
  plain.ai_family = hints.ai_family;
  switch (hints.ai_qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      plain.ai_socktype = SOCK_STREAM;
      break;
    case IBV_QPT_UD:
      plain.ai_socktype = SOCK_DGRAM;
      break;
    default:
      break;
  }
  switch (hints.ai_port_space) {
    case RDMA_PS_TCP:
      plain.ai_protocol = IPPROTO_TCP;
      break;
    case RDMA_PS_UDP:
    case RDMA_PS_IPOIB:
      plain.ai_protocol = IPPROTO_UDP;
      break;
    case RDMA_PS_IB:
      if (plain.ai_socktype == SOCK_STREAM) plain.ai_protocol = IPPROTO_TCP;
      if (plain.ai_socktype == SOCK_DGRAM) plain.ai_protocol = IPPROTO_UDP;
      break;
    default:
      break;
  }
  return plain;
}

Status take_over(const addrinfo& found, const rdma_addrinfo* hints, rdma_addrinfo& to) {
  const bool stream = found.ai_socktype == SOCK_STREAM;
  to.ai_qp_type = stream ? IBV_QPT_RC : IBV_QPT_UD;
  to.ai_port_space = found.ai_protocol == IPPROTO_UDP ? RDMA_PS_UDP : RDMA_PS_TCP;
  if (hints != nullptr && hints->ai_qp_type != 0) to.ai_qp_type = hints->ai_qp_type;
  if (hints != nullptr && hints->ai_port_space != 0) to.ai_port_space = hints->ai_port_space;
  to.ai_family = found.ai_family;
  const bool passive = hints != nullptr && (hints->ai_flags & RAI_PASSIVE) != 0;
  if (passive) to.ai_flags = RAI_PASSIVE;
  if (found.ai_canonname != nullptr) {
    (passive ? to.ai_src_canonname : to.ai_dst_canonname) = strdup(found.ai_canonname);
  }
  return passive ? copy(found.ai_addr, found.ai_addrlen, to.ai_src_addr, to.ai_src_len)
                 : copy(found.ai_addr, found.ai_addrlen, to.ai_dst_addr, to.ai_dst_len);
}

// There is no name to resolve: the result is the hints.
Status take_over_hints(const rdma_addrinfo& hints, rdma_addrinfo& to) {
  to.ai_flags = hints.ai_flags;
  to.ai_family = hints.ai_family;
  to.ai_qp_type = hints.ai_qp_type;
  to.ai_port_space = hints.ai_port_space;
  if (hints.ai_dst_len == 0) return {};
  return copy(hints.ai_dst_addr, hints.ai_dst_len, to.ai_dst_addr, to.ai_dst_len);
}

Status check_hints(const char* node, const char* service, const rdma_addrinfo* hints) {
  if (node == nullptr && service == nullptr && hints == nullptr) {
    return Error{EINVAL, "node, service and hints are all missing"};
  }
  if (hints == nullptr) return {};
  if ((hints->ai_flags & kFlagSa) != 0) {
    return Error{EOPNOTSUPP, "RAI_SA needs an InfiniBand subnet administrator; RoCE has none"};
  }
  if (hints->ai_family == AF_IB) {
    return Error{EAFNOSUPPORT, "AF_IB is for InfiniBand fabrics; use an IP address"};
  }
  return {};
}

struct FoundAddress {
  addrinfo* list = nullptr;
  FoundAddress() = default;
  FoundAddress(const FoundAddress&) = delete;
  FoundAddress& operator=(const FoundAddress&) = delete;
  ~FoundAddress() {
    if (list != nullptr) freeaddrinfo(list);
  }
};

// `failure` is an error code of getaddrinfo(); the status is an error of this library.
Status look_up(const char* node, const char* service, const rdma_addrinfo* hints, int& failure,
               OwnAddrinfo& result) {
  Status status = check_hints(node, service, hints);
  if (status.ok()) status = library().check_devices();
  if (!status.ok()) return status;
  OwnAddrinfo info(static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo))));
  if (info == nullptr) return abi::kNoMemory;
  if (node == nullptr && service == nullptr) {
    status = take_over_hints(*hints, *info);
  } else {
    FoundAddress found;
    const addrinfo plain = hints != nullptr ? plain_hints(*hints) : addrinfo{};
    failure = getaddrinfo(node, service, hints != nullptr ? &plain : nullptr, &found.list);
    if (failure != 0) return {};
    status = take_over(*found.list, hints, *info);
  }
  if (status.ok() && info->ai_src_len == 0 && hints != nullptr && hints->ai_src_len != 0) {
    status = copy(hints->ai_src_addr, hints->ai_src_len, info->ai_src_addr, info->ai_src_len);
  }
  if (status.ok()) result = std::move(info);
  return status;
}

Status resolve_in_background(Id& id, const char* node, const char* service,
                             const rdma_addrinfo* hints) {
  if (belongs_to_parent(id)) return kForked;
  {
    const std::lock_guard lock(id.mutex);
    if (id.resolving_addrinfo) return Error{EBUSY, "the identifier is resolving already"};
    id.resolving_addrinfo = true;
  }
  int failure = 0;
  OwnAddrinfo found;
  const Status status = look_up(node, service, hints, failure, found);
  const bool resolved = status.ok() && failure == 0;
  {
    const std::lock_guard lock(id.mutex);
    id.resolving_addrinfo = resolved;
    if (resolved) id.resolved_addrinfo = found.release();
  }
  if (!status.ok()) return status;
  if (failure != 0) {
    runtime::log(runtime::LogLevel::Info, "rdma_resolve_addrinfo: %s", gai_strerror(failure));
    id.post(kAddrinfoError, -ENOENT);
  } else {
    id.post(kAddrinfoResolved);
  }
  return {};
}

}  // namespace
}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

// Returns 0, -1 with errno, or a code for gai_strerror().
VERBENA_EXPORT int rdma_getaddrinfo(const char* node, const char* service,
                                    const rdma_addrinfo* hints, rdma_addrinfo** res) {
  int failure = 0;
  const int code = outcome_of("rdma_getaddrinfo", [&] {
    OwnAddrinfo found;
    const Status status = look_up(node, service, hints, failure, found);
    if (status.ok() && failure == 0) *res = found.release();
    return status;
  });
  return code != 0 ? code : failure;
}

VERBENA_EXPORT void rdma_freeaddrinfo(rdma_addrinfo* res) {
  while (res != nullptr) {
    rdma_addrinfo* const info = std::exchange(res, res->ai_next);
    std::free(info->ai_connect);
    std::free(info->ai_route);
    std::free(info->ai_src_canonname);
    std::free(info->ai_dst_canonname);
    std::free(info->ai_src_addr);
    std::free(info->ai_dst_addr);
    std::free(info);
  }
}

VERBENA_EXPORT int rdma_resolve_addrinfo(rdma_cm_id* id, const char* node, const char* service,
                                         const rdma_addrinfo* hints) {
  if (id == nullptr) {
    errno = EINVAL;
    return -1;
  }
  return start_and_complete(id, [&] {
    return outcome_of("rdma_resolve_addrinfo",
                      [&] { return resolve_in_background(*from(id), node, service, hints); });
  });
}

VERBENA_EXPORT int rdma_query_addrinfo(rdma_cm_id* id, rdma_addrinfo** info) {
  return outcome_of("rdma_query_addrinfo", [&]() -> Status {
    if (id == nullptr || info == nullptr) return Error{EINVAL, "identifier or result are missing"};
    Id& ours = *from(id);
    const std::lock_guard lock(ours.mutex);
    if (ours.resolved_addrinfo == nullptr) return Error{ENOENT, "nothing was resolved"};
    *info = std::exchange(ours.resolved_addrinfo, nullptr);
    ours.resolving_addrinfo = false;
    return {};
  });
}

// For programs that wake their own thread.
VERBENA_EXPORT int rdma_write_cm_event(rdma_cm_id* id, rdma_cm_event_type event, int status,
                                       uint64_t arg) {
  return outcome_of("rdma_write_cm_event", [&]() -> Status {
    if (verbena::abi::number_of(event) != kUserEvent)
      return Error{EINVAL, "only RDMA_CM_EVENT_USER"};
    Id& ours = *from(id);
    if (belongs_to_parent(ours)) return kForked;
    auto written = std::make_unique<Event>(ours, kUserEvent, status);
    std::memcpy(&written->param, &arg, sizeof arg);
    ours.post(std::move(written));
    return {};
  });
}

}  // extern "C"
