// Path records and queue pair attributes: the results of route resolution and connecting for verbs.
#pragma once

#include <infiniband/sa.h>
#include <infiniband/verbs.h>

#include "abi/rdmacm/id.h"

namespace verbena::rdmacm {

// RoCE has no subnet administrator: the path follows from the addresses and the port.
Result<ibv_sa_path_rec> path_to_destination(const Id& id);
// The path of an agreed connection.
ibv_sa_path_rec path_of(const cm::ConnectionInfo& info);
// The address vector of the destination.
ibv_ah_attr address_vector(const Id& id);

// The attributes and mask of ibv_modify_qp for a change to `attr.qp_state`. Without a connection,
// only those of INIT.
Status fill_qp_attributes(const Id& id, ibv_qp_attr& attr, int& mask);
Status make_ready(Id& id, const cm::ConnectionInfo& info, uint8_t responder_resources,
                  uint8_t initiator_depth);
Status bring_to_error(Id& id);
// Sets the queue key of datagrams; 0 requests the default. EINVAL: a different one was set before.
Status set_qkey(Id& id, uint32_t wanted);

}  // namespace verbena::rdmacm
