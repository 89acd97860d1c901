// Converts queue pair attributes between their C form and the engine's.
#pragma once

#include <infiniband/verbs.h>

#include "core/qp_attributes.h"

namespace verbena::abi {

ibv_mtu to_public(wire::Mtu mtu);
core::AddressVector to_core(const ibv_ah_attr& ah);
core::QpAttributes to_core(const ibv_qp_attr& attr);
ibv_qp_attr to_public(const core::QpAttributes& attr, bool draining);

}  // namespace verbena::abi
