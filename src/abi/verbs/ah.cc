// Address handles: the destinations of datagrams. Replies use the 40 bytes in front of a received
// datagram, which contain its IP header.
#include <cstring>
#include <memory>
#include <optional>

#include "abi/verbs/errors.h"
#include "abi/verbs/limits.h"
#include "abi/verbs/objects.h"
#include "abi/verbs/qp_attributes.h"
#include "base/bytes.h"

namespace verbena::abi {
namespace {

Result<ibv_ah*> create_ah(Pd* pd, const ibv_ah_attr& attr) {
  Context* context = from(pd->context);
  if (context->nic->is_abandoned()) return kDead;
  auto ah = std::make_unique<Ah>();
  if (context->device->ahs.fetch_add(1) >= static_cast<int>(kMaxAhs)) {
    context->device->ahs.fetch_sub(1);
    return Error{ENOMEM, "too many address handles (see max_ah)"};
  }
  auto handle = context->nic->open_address(pd->id, to_core(attr));
  if (!handle.ok()) {
    context->device->ahs.fetch_sub(1);
    return handle.error();
  }
  ah->handle = std::move(handle.value());
  ah->context = pd->context;
  ah->pd = pd;
  pd->add_user();
  context->add_user();
  return ah.release();
}

Status destroy_ah(Ah* ah) {
  Context* context = from(ah->context);
  context->device->ahs.fetch_sub(1);
  from(ah->pd)->drop_user();
  delete ah;
  context->drop_user();
  return {};
}

// The addressing of a received datagram.
struct ReceivedHeader {
  wire::Gid source;
  wire::Gid destination;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  uint32_t flow_label = 0;
};

// An IPv4 header is in the last 20 bytes; the bytes before it are undefined.
std::optional<ReceivedHeader> read_header_area(const ibv_grh& grh) {
  std::byte area[sizeof grh];
  std::memcpy(area, &grh, sizeof grh);
  const std::byte* const ipv4 = area + 20;
  uint32_t sum = 0;
  for (int i = 0; i < 20; i += 2) sum += load_be16(ipv4 + i);
  while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
  if (load_u8(ipv4) == 0x45 && sum == 0xFFFF) {
    return ReceivedHeader{.source = wire::Gid::from_ipv4(ipv4 + 12),
                          .destination = wire::Gid::from_ipv4(ipv4 + 16),
                          .traffic_class = load_u8(ipv4 + 1),
                          .hop_limit = load_u8(ipv4 + 8)};
  }
  if (load_u8(area) >> 4 != 6) return std::nullopt;
  const uint32_t first = load_be32(area);
  return ReceivedHeader{.source = wire::Gid::from_ipv6(area + 8),
                        .destination = wire::Gid::from_ipv6(area + 24),
                        .traffic_class = static_cast<uint8_t>(first >> 20),
                        .hop_limit = load_u8(area + 7),
                        .flow_label = first & 0xFFFFF};
}

// The source GID of a reply: the datagram's destination, or for a group any GID of the same IP
// version.
std::optional<uint8_t> gid_index_for(runtime::Nic& nic, const wire::Gid& destination) {
  for (uint8_t i = 0; i < runtime::GidTable::kSize; ++i) {
    const wire::Gid gid = nic.gid(i);
    if (gid.is_zero()) continue;
    if (gid == destination) return i;
    if (destination.is_multicast() && gid.is_ipv4() == destination.is_ipv4()) return i;
  }
  return std::nullopt;
}

Status init_ah(Context* context, uint8_t port, const ibv_wc& wc, const ibv_grh* grh,
               ibv_ah_attr* attr) {
  if (context->nic->is_abandoned()) return kDead;
  if (port != 1) return Error{EINVAL, "the device has port 1 only"};
  if ((wc.wc_flags & IBV_WC_GRH) == 0 || grh == nullptr) {
    return Error{EINVAL, "only a datagram's completion contains its source (IBV_WC_GRH)"};
  }
  const auto header = read_header_area(*grh);
  if (!header) return Error{EINVAL, "the 40 bytes are neither an IPv4 nor an IPv6 header"};
  const auto index = gid_index_for(*context->nic, header->destination);
  if (!index) return Error{EINVAL, "the device no longer has the datagram's destination address"};
  *attr = {};
  std::memcpy(attr->grh.dgid.raw, header->source.bytes.data(), sizeof attr->grh.dgid.raw);
  attr->grh.flow_label = header->flow_label;
  attr->grh.sgid_index = *index;
  attr->grh.hop_limit = header->hop_limit;
  attr->grh.traffic_class = header->traffic_class;
  attr->is_global = 1;
  attr->port_num = port;
  return {};
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  return object_of<ibv_ah>("ibv_create_ah", [&] { return create_ah(from(pd), *attr); });
}

VERBENA_EXPORT int ibv_init_ah_from_wc(ibv_context* context, uint8_t port_num, ibv_wc* wc,
                                       ibv_grh* grh, ibv_ah_attr* ah_attr) {
  const int code = status_of("ibv_init_ah_from_wc",
                             [&] { return init_ah(from(context), port_num, *wc, grh, ah_attr); });
  return code == 0 ? 0 : -1;
}

VERBENA_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh,
                                             uint8_t port_num) {
  return object_of<ibv_ah>("ibv_create_ah_from_wc", [&]() -> Result<ibv_ah*> {
    ibv_ah_attr attr;
    const Status found = init_ah(from(pd->context), port_num, *wc, grh, &attr);
    if (!found.ok()) return found.error();
    return create_ah(from(pd), attr);
  });
}

VERBENA_EXPORT int ibv_destroy_ah(ibv_ah* ah) {
  return status_of("ibv_destroy_ah", [&] { return destroy_ah(from(ah)); });
}

}  // extern "C"
