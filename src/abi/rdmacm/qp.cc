// Queue pairs, completion queues and shared receive queues of an identifier.
#include <rdma/rdma_verbs.h>

#include <cstring>

#include "abi/rdmacm/errors.h"
#include "abi/rdmacm/id.h"
#include "abi/rdmacm/path.h"

namespace verbena::rdmacm {
namespace {

void destroy_cqs(Id& id) {
  // the shared receive queue owns them
  if (id.qp_type == IBV_QPT_XRC_RECV && id.srq != nullptr) return;
  const bool two_cqs = id.send_cq != id.recv_cq;
  if (id.recv_cq != nullptr) ibv_destroy_cq(id.recv_cq);
  if (id.send_cq != nullptr && two_cqs) ibv_destroy_cq(id.send_cq);
  id.recv_cq = id.send_cq = nullptr;
  const bool two_channels = id.send_cq_channel != id.recv_cq_channel;
  if (id.recv_cq_channel != nullptr) ibv_destroy_comp_channel(id.recv_cq_channel);
  if (id.send_cq_channel != nullptr && two_channels) ibv_destroy_comp_channel(id.send_cq_channel);
  id.recv_cq_channel = id.send_cq_channel = nullptr;
}

Status create_cq(Id& id, uint32_t size, ibv_comp_channel*& channel, ibv_cq*& cq) {
  channel = ibv_create_comp_channel(id.verbs);
  if (channel == nullptr) return Error{errno, "cannot create a completion channel"};
  cq = ibv_create_cq(id.verbs, static_cast<int>(size), static_cast<rdma_cm_id*>(&id), channel, 0);
  if (cq == nullptr) return Error{errno, "cannot create a completion queue"};
  return {};
}

// Size 0: there is a queue already, or none is needed.
Status create_cqs(Id& id, uint32_t send_size, uint32_t receive_size) {
  Status status;
  if (receive_size != 0) status = create_cq(id, receive_size, id.recv_cq_channel, id.recv_cq);
  if (status.ok() && send_size != 0) {
    status = create_cq(id, send_size, id.send_cq_channel, id.send_cq);
  }
  if (!status.ok()) destroy_cqs(id);
  return status;
}

// A datagram queue pair goes to RTS; a connected one waits for its peer.
Status initialize(Id& id, ibv_qp* qp) {
  if (id.is_ud()) {
    const Status chosen = set_qkey(id, 0);
    if (!chosen.ok()) return chosen;
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  int mask = 0;
  const Status filled = fill_qp_attributes(id, attr, mask);
  if (!filled.ok()) return filled;
  int code = ibv_modify_qp(qp, &attr, mask);
  if (code == 0 && id.is_ud()) {
    attr.qp_state = IBV_QPS_RTR;
    code = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
  }
  if (code == 0 && id.is_ud()) {
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = 0;
    code = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
  }
  return verbs_status(code, "the new queue pair cannot be initialized");
}

Status fill_domains(Id& id, ibv_qp_init_attr_ex& attr) {
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || attr.pd == nullptr) {
    attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
    attr.pd = id.pd;
  } else if (attr.pd->context != id.verbs) {
    return Error{EINVAL, "the protection domain is of another device than the identifier"};
  }
  if (id.qp_type == IBV_QPT_XRC_RECV &&
      ((attr.comp_mask & IBV_QP_INIT_ATTR_XRCD) == 0 || attr.xrcd == nullptr)) {
    Result<ibv_xrcd*> domain = id.device->xrc_domain();
    if (!domain.ok()) return domain.error();
    attr.xrcd = domain.value();
    attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
  }
  return {};
}

Status fill_queues(Id& id, ibv_qp_init_attr_ex& attr) {
  if ((id.recv_cq != nullptr && attr.recv_cq != nullptr && id.recv_cq != attr.recv_cq) ||
      (id.send_cq != nullptr && attr.send_cq != nullptr && id.send_cq != attr.send_cq)) {
    return Error{EINVAL, "the identifier has other completion queues"};
  }
  const bool has_send = attr.send_cq != nullptr || id.send_cq != nullptr;
  const bool has_receive = attr.recv_cq != nullptr || id.recv_cq != nullptr;
  const Status made =
      create_cqs(id, has_send ? 0 : attr.cap.max_send_wr, has_receive ? 0 : attr.cap.max_recv_wr);
  if (!made.ok()) return made;
  if (attr.send_cq == nullptr) attr.send_cq = id.send_cq;
  if (attr.recv_cq == nullptr) attr.recv_cq = id.recv_cq;
  if (attr.srq == nullptr) attr.srq = id.srq;
  return {};
}

Status create_qp_ex(Id& id, ibv_qp_init_attr_ex& attr) {
  if (belongs_to_parent(id)) return kForked;
  if (id.device == nullptr) return kNotBound;
  if (id.qp != nullptr) return Error{EINVAL, "the identifier has a queue pair already"};
  Status status = fill_domains(id, attr);
  if (status.ok()) status = fill_queues(id, attr);
  if (!status.ok()) return status;
  ibv_qp* const qp = ibv_create_qp_ex(id.verbs, &attr);
  if (qp == nullptr) {
    const Error error{errno, "cannot create the queue pair"};
    destroy_cqs(id);
    return error;
  }
  id.local_ece = {};  // its queue pair has none
  status = initialize(id, qp);
  if (!status.ok()) {
    ibv_destroy_qp(qp);
    destroy_cqs(id);
    return status;
  }
  if (qp->pd != nullptr) id.pd = qp->pd;
  id.qp = qp;
  return {};
}

Status create_srq(Id& id, ibv_srq_init_attr_ex& attr) {
  if (belongs_to_parent(id)) return kForked;
  if (id.device == nullptr) return kNotBound;
  if (id.srq != nullptr) return Error{EINVAL, "the identifier has a shared receive queue already"};
  if ((attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0) {
    return Error{EINVAL, "comp_mask lacks IBV_SRQ_INIT_ATTR_TYPE"};
  }
  if ((attr.comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || attr.pd == nullptr) {
    attr.pd = id.pd;
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
  }
  if (attr.srq_type == IBV_SRQT_XRC) {
    if ((attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD) == 0 || attr.xrcd == nullptr) {
      Result<ibv_xrcd*> domain = id.device->xrc_domain();
      if (!domain.ok()) return domain.error();
      attr.xrcd = domain.value();
    }
    if ((attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ) == 0 || attr.cq == nullptr) {
      const Status made = create_cqs(id, 0, attr.attr.max_wr);
      if (!made.ok()) return made;
      attr.cq = id.recv_cq;
    }
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  }
  ibv_srq* const srq = ibv_create_srq_ex(id.verbs, &attr);
  if (srq == nullptr) {
    const Error error{errno, "cannot create the shared receive queue"};
    destroy_cqs(id);
    return error;
  }
  if (id.pd == nullptr) id.pd = attr.pd;
  id.srq = srq;
  return {};
}

}  // namespace

Status create_qp(Id& id, ibv_pd* pd, ibv_qp_init_attr* init) {
  // The plain attributes are a prefix of the extended ones.
  ibv_qp_init_attr_ex extended{};
  std::memcpy(static_cast<void*>(&extended), init, sizeof *init);
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd != nullptr ? pd : id.pd;
  const Status status = create_qp_ex(id, extended);
  std::memcpy(static_cast<void*>(init), &extended, sizeof *init);
  return status;
}

}  // namespace verbena::rdmacm

using namespace verbena;
using namespace verbena::rdmacm;

extern "C" {

VERBENA_EXPORT int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* qp_init_attr) {
  return outcome_of("rdma_create_qp", [&] { return create_qp(*from(id), pd, qp_init_attr); });
}

VERBENA_EXPORT int rdma_create_qp_ex(rdma_cm_id* id, ibv_qp_init_attr_ex* qp_init_attr) {
  return outcome_of("rdma_create_qp_ex", [&] { return create_qp_ex(*from(id), *qp_init_attr); });
}

// Without a queue pair this has no effect: qperf calls it for its listener.
VERBENA_EXPORT void rdma_destroy_qp(rdma_cm_id* id) {
  if (id->qp != nullptr) ibv_destroy_qp(id->qp);
  id->qp = nullptr;
  destroy_cqs(*from(id));
}

VERBENA_EXPORT int rdma_create_srq(rdma_cm_id* id, ibv_pd* pd, ibv_srq_init_attr* attr) {
  return outcome_of("rdma_create_srq", [&] {
    ibv_srq_init_attr_ex extended{};
    std::memcpy(static_cast<void*>(&extended), attr, sizeof *attr);
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    extended.srq_type = id->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC;
    extended.pd = pd;
    const Status status = create_srq(*from(id), extended);
    std::memcpy(static_cast<void*>(attr), &extended, sizeof *attr);
    return status;
  });
}

VERBENA_EXPORT int rdma_create_srq_ex(rdma_cm_id* id, ibv_srq_init_attr_ex* attr) {
  return outcome_of("rdma_create_srq_ex", [&] { return create_srq(*from(id), *attr); });
}

VERBENA_EXPORT void rdma_destroy_srq(rdma_cm_id* id) {
  if (id->srq != nullptr) ibv_destroy_srq(id->srq);
  id->srq = nullptr;
  destroy_cqs(*from(id));
}

}  // extern "C"
