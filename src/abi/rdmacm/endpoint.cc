// Endpoints: an identifier with address, route and queue pair in one call; and synchronous
// listening.
#include <rdma/rdma_verbs.h>

#include <cstdlib>
#include <utility>

#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/id.h"

namespace verbena::rdmacm {
namespace {

int prepare_passive(Id& id, const rdma_addrinfo& res, ibv_pd* pd, const ibv_qp_init_attr* init) {
  if (rdma_bind_addr(&id, res.ai_src_addr) != 0) return -1;
  if (pd != nullptr) id.pd = pd;
  if (init != nullptr) {
    id.endpoint_qp = std::make_unique<ibv_qp_init_attr>(*init);
    id.endpoint_qp->qp_type = id.qp_type;
  }
  return 0;
}

int prepare_active(Id& id, const rdma_addrinfo& res, ibv_pd* pd, ibv_qp_init_attr* init) {
  constexpr int kTimeoutMs = 2000;
  if (rdma_resolve_addr(&id, res.ai_src_addr, res.ai_dst_addr, kTimeoutMs) != 0) return -1;
  if (res.ai_route_len != 0) {
    if (rdma_set_option(&id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, res.ai_route, res.ai_route_len) !=
            0 ||
        complete(id) != 0) {
      return -1;
    }
  } else if (rdma_resolve_route(&id, kTimeoutMs) != 0) {
    return -1;
  }
  if (init != nullptr) {
    init->qp_type = id.qp_type;
    if (rdma_create_qp(&id, pd, init) != 0) return -1;
  }
  const auto* data = static_cast<const std::byte*>(res.ai_connect);
  if (res.ai_connect_len != 0) id.connect_data.assign(data, data + res.ai_connect_len);
  return 0;
}

// Converts the event to the call's result: a request with its queue pair, or an error.
Status take_request(Id& listener, Event& event, rdma_cm_id** id) {
  if (event.kind() == RDMA_CM_EVENT_REJECTED) return Error{ECONNREFUSED, "rejected"};
  if (event.kind() == RDMA_CM_EVENT_DEVICE_REMOVAL) return Error{ENODEV, kRemoved.why};
  if (event.status != 0) return Error{std::abs(event.status), "the event reports an error"};
  if (event.kind() != RDMA_CM_EVENT_CONNECT_REQUEST) {
    return Error{EINVAL, "the event is not a request"};
  }
  if (listener.endpoint_qp != nullptr) {
    ibv_qp_init_attr init = *listener.endpoint_qp;
    const bool same_device = listener.pd != nullptr && listener.pd->context == event.id->verbs;
    const Status made = create_qp(*from(event.id), same_device ? listener.pd : nullptr, &init);
    if (!made.ok()) return made;
  }
  *id = event.id;
  (*id)->event = &event;
  return {};
}

}  // namespace
}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT int rdma_create_ep(rdma_cm_id** id, rdma_addrinfo* res, ibv_pd* pd,
                                  ibv_qp_init_attr* qp_init_attr) {
  Id* const made = object_of<Id>("rdma_create_ep", [&] {
    return create_id(nullptr, nullptr, static_cast<unsigned>(res->ai_port_space),
                     static_cast<unsigned>(res->ai_qp_type));
  });
  if (made == nullptr) return -1;
  const bool passive = (res->ai_flags & RAI_PASSIVE) != 0;
  const int prepared = passive ? prepare_passive(*made, *res, pd, qp_init_attr)
                               : prepare_active(*made, *res, pd, qp_init_attr);
  if (prepared != 0) {
    const int error = errno;
    rdma_destroy_ep(made);
    errno = error;
    return -1;
  }
  *id = made;
  return 0;
}

VERBENA_EXPORT void rdma_destroy_ep(rdma_cm_id* id) {
  if (id->qp != nullptr) rdma_destroy_qp(id);
  if (id->srq != nullptr) rdma_destroy_srq(id);
  rdma_destroy_id(id);
}

VERBENA_EXPORT int rdma_get_request(rdma_cm_id* listen, rdma_cm_id** id) {
  Id& listener = *from(listen);
  const int allowed = outcome_of("rdma_get_request", [&]() -> Status {
    if (belongs_to_parent(listener)) return kForked;
    if (listener.synchronous) return {};
    return Error{EINVAL, "rdma_get_request is for synchronous identifiers"};
  });
  if (allowed != 0) return allowed;
  if (listen->event != nullptr) rdma_ack_cm_event(std::exchange(listen->event, nullptr));
  Event* event = nullptr;
  if (wait_for_event(*from(listen->channel), &event) != 0) return -1;
  const int taken =
      outcome_of("rdma_get_request", [&] { return take_request(listener, *event, id); });
  if (taken == 0) return 0;
  if (event->kind() != RDMA_CM_EVENT_CONNECT_REQUEST) {
    listen->event = event;
    return -1;
  }
  const int error = errno;  // there is no queue pair, so the request is rejected
  rdma_cm_id* const refused = event->id;
  rdma_ack_cm_event(event);
  rdma_destroy_id(refused);
  errno = error;
  return -1;
}

}  // extern "C"
