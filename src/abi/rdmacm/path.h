// Path records and queue pair attributes: what resolving a route and connecting amount to for
// verbs.
#pragma once

#include <infiniband/sa.h>
#include <infiniband/verbs.h>

#include "abi/rdmacm/id.h"

namespace verbena::rdmacm {

// On RoCE there is nobody to ask: it follows from the addresses and the port.
Result<ibv_sa_path_rec> path_to_destination(const Id& id);
// The path that a connection agreed upon.
ibv_sa_path_rec path_of(const cm::ConnectionInfo& info);
// How to send to the destination.
ibv_ah_attr address_vector(const Id& id);

// What ibv_modify_qp wants for a change to `attr.qp_state`, with its mask. Of an id without a
// connection, only what INIT needs.
Status fill_qp_attributes(const Id& id, ibv_qp_attr& attr, int& mask);
Status make_ready(Id& id, const cm::ConnectionInfo& info, uint8_t responder_resources,
                  uint8_t initiator_depth);
Status bring_to_error(Id& id);
// The queue key of datagrams; 0 asks for the default. EINVAL when another was settled before.
Status settle_qkey(Id& id, uint32_t wanted);

}  // namespace verbena::rdmacm
