// ibv_query_port: describes the network interface as an InfiniBand port.
#include <algorithm>
#include <cstring>

#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"
#include "abi/verbs/qp_attributes.h"
#include "runtime/port_state.h"

#undef ibv_query_port

namespace verbena::abi {
namespace {

constexpr uint8_t kLinkUp = 5;  // physical port states (IBA PortInfo:PortPhysicalState)
constexpr uint8_t kDisabled = 3;

constexpr uint8_t kWidth1x = 1;
constexpr uint8_t kWidth4x = 2;
constexpr uint8_t kWidth2x = 16;

constexpr uint8_t width_of(uint8_t lanes) {
  return lanes == 1 ? kWidth1x : lanes == 2 ? kWidth2x : kWidth4x;
}

NewerPortAttr describe(const runtime::PortState& port) {
  NewerPortAttr a{};
  a.state = port.up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  a.max_mtu = IBV_MTU_4096;
  a.active_mtu = to_public(port.active_mtu);
  a.gid_tbl_len = runtime::GidTable::kSize;
  a.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  a.max_msg_sz = core::kMaxMessageBytes;
  a.pkey_tbl_len = 1;
  a.max_vl_num = 1;
  const runtime::LinkRate& rate = runtime::link_rate_for(port.speed_mbps);
  a.active_width = width_of(rate.lanes);
  a.active_speed = rate.speed;
  a.active_speed_ex = rate.speed;
  a.phys_state = port.up ? kLinkUp : kDisabled;
  a.link_layer = IBV_LINK_LAYER_ETHERNET;
  a.flags = IBV_QPF_GRH_REQUIRED;
  return a;
}

}  // namespace

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t attr_bytes) {
  return status_of("ibv_query_port", [&]() -> Status {
    if (port != 1) return Error{EINVAL, "the device has port 1 only"};
    const NewerPortAttr ours = describe(from(context)->nic->port());
    std::memset(static_cast<void*>(attr), 0, attr_bytes);
    std::memcpy(static_cast<void*>(attr), &ours, std::min(attr_bytes, sizeof ours));
    return {};
  });
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

// For programs built with the older, shorter structure: it ends with link_layer and flags, which
// were padding.
VERBENA_EXPORT int ibv_query_port(ibv_context* context, uint8_t port_num,
                                  struct _compat_ibv_port_attr* attr) {
  return query_port(context, port_num, reinterpret_cast<ibv_port_attr*>(attr),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

// The actual speed of the interface, in units of 100 Mb/s.
VERBENA_EXPORT int ibv_query_port_speed(ibv_context* context, uint32_t port_num,
                                        uint64_t* port_speed) {
  return status_of("ibv_query_port_speed", [&]() -> Status {
    if (port_num != 1) return Error{EINVAL, "the device has port 1 only"};
    *port_speed = from(context)->nic->port().speed_mbps / 100;
    return {};
  });
}

}  // extern "C"
