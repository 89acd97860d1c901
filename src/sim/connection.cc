// Which attributes each transition of a connected queue pair needs.
#include "sim/connection.h"

namespace verbena::sim {
namespace {

using namespace core::qp_attr;

bool has_requester(core::QpType type) {
  return type == core::QpType::Rc || type == core::QpType::XrcSend;
}
bool has_responder(core::QpType type) {
  return type == core::QpType::Rc || type == core::QpType::XrcReceive;
}

uint32_t rtr_mask(core::QpType type) {
  const uint32_t all = kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn;
  return has_responder(type) ? all | kMaxDestRdAtomic | kMinRnrTimer : all;
}

uint32_t rts_mask(core::QpType type) {
  uint32_t mask = kState | kSqPsn;
  if (type != core::QpType::Uc) mask |= kTimeout;
  if (has_requester(type)) mask |= kRetryCount | kRnrRetry | kMaxRdAtomic;
  return mask;
}

}  // namespace

std::array<Transition, 3> transitions_to_rts(core::QpType type, const ConnectionEnd& end,
                                             const ConnectionShape& shape) {
  core::QpAttributes init;
  init.state = core::QpState::Init;
  init.port = 1;
  init.access = shape.access;

  core::QpAttributes rtr = init;
  rtr.state = core::QpState::Rtr;
  rtr.address.is_global = true;
  rtr.address.destination = end.destination;
  rtr.source_gid = end.source;
  rtr.path = end.path;
  rtr.path_packet_bytes = end.path_packet_bytes;
  rtr.path_mtu = shape.mtu;
  rtr.dest_qpn = end.peer;
  rtr.rq_psn = end.rq_psn;
  rtr.max_dest_read_atomic = end.peer_read_depth;
  rtr.min_rnr_timer = shape.min_rnr_timer;

  core::QpAttributes rts = rtr;
  rts.state = core::QpState::Rts;
  rts.sq_psn = end.sq_psn;
  rts.timeout = shape.timeout;
  rts.retry_count = shape.retry_count;
  rts.rnr_retry = shape.rnr_retry;
  rts.max_read_atomic = end.read_depth;

  return {{{init, kState | kPkeyIndex | kPort | kAccessFlags},
           {rtr, rtr_mask(type)},
           {rts, rts_mask(type)}}};
}

}  // namespace verbena::sim
