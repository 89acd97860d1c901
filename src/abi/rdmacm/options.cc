// rdma_set_option.
#include <arpa/inet.h>

#include <cstring>

#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/id.h"

namespace verbena::rdmacm {
namespace {

constexpr Error kWrongSize{EINVAL, "the size of the value does not match the option"};
constexpr Error kTooLate{EINVAL, "too late to set this option"};

template <typename T>
std::optional<T> value_of(const void* value, size_t size) {
  if (value == nullptr || size != sizeof(T)) return std::nullopt;
  T read;
  std::memcpy(&read, value, sizeof read);
  return read;
}

Status set_tos(Id& id, const void* value, size_t size) {
  const auto tos = value_of<uint8_t>(value, size);
  if (!tos) return kWrongSize;
  id.tos = *tos;
  return {};
}

Status set_reuse_address(Id& id, const void* value, size_t size) {
  const auto reuse = value_of<int>(value, size);
  if (!reuse) return kWrongSize;
  const State state = id.state;
  if (state != State::Idle && (*reuse == 0 || state == State::Listen)) return kTooLate;
  id.reuse_address = *reuse != 0;
  return {};
}

Status set_only_family(Id& id, const void* value, size_t size) {
  const auto only = value_of<int>(value, size);
  if (!only) return kWrongSize;
  const State state = id.state;
  if (state != State::Idle && state != State::AddressBound) return kTooLate;
  id.only_family = *only != 0;
  return {};
}

Status set_ack_timeout(Id& id, const void* value, size_t size) {
  const auto timeout = value_of<uint8_t>(value, size);
  if (!timeout) return kWrongSize;
  if (id.qp_type != IBV_QPT_RC && id.qp_type != IBV_QPT_XRC_SEND) {
    return Error{EINVAL, "only RC and XRC wait for ACKs"};
  }
  if (*timeout > 31) return Error{EINVAL, "an ACK timeout is at most 31"};
  id.ack_timeout = *timeout;
  return {};
}

Status set_id_option(Id& id, int name, const void* value, size_t size) {
  switch (name) {
    case RDMA_OPTION_ID_TOS:
      return set_tos(id, value, size);
    case RDMA_OPTION_ID_REUSEADDR:
      return set_reuse_address(id, value, size);
    case RDMA_OPTION_ID_AFONLY:
      return set_only_family(id, value, size);
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      return set_ack_timeout(id, value, size);
    default:
      return Error{ENOSYS, "the option does not exist"};
  }
}

ibv_sa_path_rec read_path(const ibv_path_data& from) {
  const ibv_path_record& p = from.path;
  const uint32_t flow_and_hops = ntohl(p.flowlabel_hoplimit);
  ibv_sa_path_rec to{};
  to.dgid = p.dgid;
  to.sgid = p.sgid;
  to.dlid = p.dlid;
  to.slid = p.slid;
  to.flow_label = htonl(flow_and_hops >> 8 & 0xFFFFF);
  to.hop_limit = static_cast<uint8_t>(flow_and_hops);
  to.traffic_class = p.tclass;
  to.reversible = p.reversible_numpath >> 7;
  to.numb_path = 1;
  to.pkey = p.pkey;
  to.sl = static_cast<uint8_t>(ntohs(p.qosclass_sl) & 0xF);
  to.mtu_selector = to.rate_selector = to.packet_life_time_selector = 2;  // exactly
  to.mtu = p.mtu & 0x1F;
  to.rate = p.rate & 0x1F;
  to.packet_life_time = p.packetlifetime & 0x1F;
  to.preference = static_cast<uint8_t>(from.flags);
  return to;
}

bool same(const ibv_gid& a, const ibv_gid& b) { return std::memcmp(a.raw, b.raw, 16) == 0; }

// Sets a route that the program has resolved itself: the primary path among the given ones.
Status set_path(Id& id, const void* value, size_t size) {
  if (value == nullptr || size == 0 || size % sizeof(ibv_path_data) != 0) return kWrongSize;
  constexpr uint32_t kWanted =
      IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
  ibv_path_data data{};
  size_t at = 0;
  for (; at < size; at += sizeof data) {
    std::memcpy(&data, static_cast<const std::byte*>(value) + at, sizeof data);
    if (data.flags == kWanted) break;
  }
  if (at == size) return Error{EINVAL, "no primary, bidirectional path among those given"};
  if (id.device == nullptr) return kNotBound;
  const ibv_sa_path_rec path = read_path(data);
  if (!same(path.sgid, to_public(id.source.gid)) ||
      !same(path.dgid, to_public(id.destination.gid))) {
    return Error{EINVAL, "the path is between other addresses than the identifier's"};
  }
  if (path.mtu < IBV_MTU_256 || path.mtu > IBV_MTU_4096) {
    return Error{EINVAL, "the path MTU does not exist"};
  }
  if (!id.enter(State::AddressResolved, State::RouteResolved)) {
    return Error{EINVAL, "a path is set after the address was resolved, instead of the route"};
  }
  const Status kept = id.set_path(path);
  if (!kept.ok()) {
    id.state = State::AddressResolved;
    return kept;
  }
  id.post(RDMA_CM_EVENT_ROUTE_RESOLVED);
  return {};
}

}  // namespace

Status set_option(Id& id, int level, int name, const void* value, size_t size) {
  if (belongs_to_parent(id)) return kForked;
  switch (level) {
    case RDMA_OPTION_ID:
      return set_id_option(id, name, value, size);
    case RDMA_OPTION_IB:
      if (name == RDMA_OPTION_IB_PATH) return set_path(id, value, size);
      return Error{ENOSYS, "the option does not exist"};
    default:
      return Error{ENOSYS, "the option level does not exist"};
  }
}

}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT int rdma_set_option(rdma_cm_id* id, int level, int optname, void* optval,
                                   size_t optlen) {
  return outcome_of("rdma_set_option",
                    [&] { return set_option(*from(id), level, optname, optval, optlen); });
}

}  // extern "C"
