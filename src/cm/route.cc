// Reads only the fields of a datagram that determine its destination.
#include "cm/route.h"

#include "cm/mad.h"

namespace verbena::cm {

Route route_of(std::span<const std::byte> mad) {
  if (!is_cm_mad(mad)) return {};
  const std::byte* body = mad.data() + MadHeader::kBytes;
  const auto to_slot_of = [](uint32_t id) {
    return Route{Route::Kind::Slot, static_cast<uint8_t>(id >> 24), 0};
  };
  const uint32_t remote_id = load_be32(body + 4);
  switch (MadHeader::load(mad.data()).attribute) {
    case Attribute::Req:
    case Attribute::SidrReq:
      return {Route::Kind::Service, 0, load_be64(body + 8)};
    case Attribute::SidrRep:
      return to_slot_of(load_be32(body));  // the request ID
    case Attribute::Rej:
      if (remote_id == 0) return {Route::Kind::AllProcesses, 0, 0};
      return to_slot_of(remote_id);
    case Attribute::Mra:
    case Attribute::Rep:
    case Attribute::Rtu:
    case Attribute::Dreq:
    case Attribute::Drep:
    case Attribute::Lap:
    case Attribute::Apr:
      return to_slot_of(remote_id);
  }
  return {};
}

}  // namespace verbena::cm
