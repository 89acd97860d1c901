// Completion queues and completion channels.
#include <arpa/inet.h>
#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/limits.h"
#include "abi/verbs/narrate.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

using core::WcOpcode;
using core::WcStatus;

static_assert(IBV_WC_SUCCESS == static_cast<int>(WcStatus::Success));
static_assert(IBV_WC_LOC_LEN_ERR == static_cast<int>(WcStatus::LocalLength));
static_assert(IBV_WC_LOC_QP_OP_ERR == static_cast<int>(WcStatus::LocalQpOperation));
static_assert(IBV_WC_LOC_PROT_ERR == static_cast<int>(WcStatus::LocalProtection));
static_assert(IBV_WC_WR_FLUSH_ERR == static_cast<int>(WcStatus::Flushed));
static_assert(IBV_WC_MW_BIND_ERR == static_cast<int>(WcStatus::WindowBind));
static_assert(IBV_WC_BAD_RESP_ERR == static_cast<int>(WcStatus::BadResponse));
static_assert(IBV_WC_LOC_ACCESS_ERR == static_cast<int>(WcStatus::LocalAccess));
static_assert(IBV_WC_REM_INV_REQ_ERR == static_cast<int>(WcStatus::RemoteInvalidRequest));
static_assert(IBV_WC_REM_ACCESS_ERR == static_cast<int>(WcStatus::RemoteAccess));
static_assert(IBV_WC_REM_OP_ERR == static_cast<int>(WcStatus::RemoteOperation));
static_assert(IBV_WC_RETRY_EXC_ERR == static_cast<int>(WcStatus::RetryExceeded));
static_assert(IBV_WC_RNR_RETRY_EXC_ERR == static_cast<int>(WcStatus::RnrRetryExceeded));
static_assert(IBV_WC_FATAL_ERR == static_cast<int>(WcStatus::Fatal));
static_assert(IBV_WC_SEND == static_cast<int>(WcOpcode::Send));
static_assert(IBV_WC_RDMA_WRITE == static_cast<int>(WcOpcode::Write));
static_assert(IBV_WC_RDMA_READ == static_cast<int>(WcOpcode::Read));
static_assert(IBV_WC_COMP_SWAP == static_cast<int>(WcOpcode::CompareSwap));
static_assert(IBV_WC_FETCH_ADD == static_cast<int>(WcOpcode::FetchAdd));
static_assert(IBV_WC_BIND_MW == static_cast<int>(WcOpcode::BindWindow));
static_assert(IBV_WC_LOCAL_INV == static_cast<int>(WcOpcode::LocalInvalidate));
static_assert(IBV_WC_RECV == static_cast<int>(WcOpcode::Receive));
static_assert(IBV_WC_RECV_RDMA_WITH_IMM == static_cast<int>(WcOpcode::ReceiveWriteImm));
static_assert(IBV_WC_GRH == core::kWcGrh);
static_assert(IBV_WC_WITH_IMM == core::kWcWithImmediate);
static_assert(IBV_WC_WITH_INV == core::kWcWithInvalidate);

void translate(const core::Completion& from_core, ibv_wc& wc) {
  wc.wr_id = from_core.wr_id;
  wc.status = static_cast<ibv_wc_status>(from_core.status);
  wc.opcode = static_cast<ibv_wc_opcode>(from_core.opcode);
  wc.vendor_err = from_core.vendor_error;
  wc.byte_len = from_core.byte_count;
  if ((from_core.flags & core::kWcWithImmediate) != 0) {
    wc.imm_data = htonl(from_core.immediate_or_rkey);
  } else {
    wc.invalidated_rkey = from_core.immediate_or_rkey;
  }
  wc.qp_num = from_core.qpn.value();
  wc.src_qp = from_core.source_qpn.value();
  wc.wc_flags = from_core.flags & core::kWcFlags;
  wc.pkey_index = 0;
  wc.slid = 0;
  wc.sl = network_type(from_core);
  wc.dlid_path_bits = 0;
}

uint32_t take(Cq& cq, uint32_t count, ibv_wc* wc) {
  const std::lock_guard lock(cq.poll_lock);
  return cq.queue.poll_each(count,
                            [wc](const core::Completion& c, uint32_t i) { translate(c, wc[i]); });
}

Status check_size(int cqe) {
  if (cqe < 1 || cqe > static_cast<int>(kMaxCqe)) {
    return Error{EINVAL, "a completion queue has between 1 and max_cqe entries"};
  }
  return {};
}

// The ring is in the program's memory if its parent domain has an allocator. The allocator may call
// verbs, so no lock is held here or when the ring is freed. Null: the default allocator.
core::CompletionQueue::Ring ring_of(Pd* domain, uint32_t capacity) {
  if (domain == nullptr) return {};
  const uint32_t slots = core::CompletionQueue::slots_for(capacity);
  void* memory = domain->allocate(slots * sizeof(core::Completion), alignof(core::Completion));
  if (memory == nullptr) return {};
  auto* ring = static_cast<core::Completion*>(memory);
  std::uninitialized_default_construct_n(ring, slots);
  const auto deallocate = [](void* owner, core::Completion* old) {
    static_cast<Pd*>(owner)->deallocate(old);
  };
  return {ring, {deallocate, domain}};
}

Status resize_cq(Cq* cq, int cqe) {
  if (cq->nic->is_abandoned()) return kDead;
  const Status size = check_size(cqe);
  if (!size.ok()) return size;
  const auto capacity = static_cast<uint32_t>(cqe);
  auto ring = ring_of(cq->domain, capacity);
  if (!ring) ring = core::CompletionQueue::make_ring(capacity);
  runtime::Nic::Guard guard(cq->lanes);
  const core::CompletionQueue::Producing producing(cq->queue);
  const std::lock_guard lock(cq->poll_lock);
  if (!cq->queue.resize(capacity, ring)) {
    return Error{EINVAL, "more completions are waiting than the new size holds"};
  }
  cq->cqe = cqe;
  return {};
}

// No new events are raised. Waits until the program has acknowledged all events that it has taken.
void wait_for_acknowledgements(Cq* cq) {
  pthread_mutex_lock(&cq->mutex);
  while (cq->comp_events_completed != cq->completion_events_taken ||
         cq->async_events_completed != cq->async_events_taken) {
    pthread_cond_wait(&cq->cond, &cq->mutex);
  }
  pthread_mutex_unlock(&cq->mutex);
}

Status destroy_cq(Cq* cq) {
  if (cq->users.load() != 0) return Error{EBUSY, "queue pairs still use this completion queue"};
  Context* context = from(cq->context);
  if (!cq->nic->is_abandoned()) {
    cq->nic->forget_cq(&cq->queue);
    if (cq->owner.completion_channel != nullptr)
      cq->owner.completion_channel->forget(cq->as_public());
    context->async->forget(cq->as_public());
    wait_for_acknowledgements(cq);
  }
  if (cq->channel != nullptr) {
    pthread_mutex_lock(&context->context.mutex);
    --cq->channel->refcnt;
    pthread_mutex_unlock(&context->context.mutex);
  }
  context->device->cqs.fetch_sub(1);
  pthread_cond_destroy(&cq->cond);
  pthread_mutex_destroy(&cq->mutex);
  Pd* domain = cq->domain;
  delete cq;
  if (domain != nullptr) domain->drop_user();
  context->drop_user();
  return {};
}

Result<ibv_comp_channel*> create_channel(Context* context) {
  if (context->nic->is_abandoned()) return kDead;
  auto channel = std::make_unique<CompletionChannel>();
  auto events = runtime::EventChannel::create();
  if (!events.ok()) return events.error();
  channel->events.reset(events.value());
  channel->context = &context->context;
  channel->fd = channel->events->fd();
  watch_channel(*context, channel.get());
  context->add_user();
  return channel.release();
}

Status destroy_channel(CompletionChannel* channel) {
  Context* context = from(channel->context);
  pthread_mutex_lock(&context->context.mutex);
  const int users = channel->refcnt;
  pthread_mutex_unlock(&context->context.mutex);
  if (users != 0) return Error{EBUSY, "completion queues still use this channel"};
  unwatch_channel(*context, channel);
  delete channel;
  context->drop_user();
  return {};
}

}  // namespace

Result<Cq*> create_cq(Context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int comp_vector, const CqOptions& options) {
  if (context->nic->is_abandoned()) return kDead;
  const Status size = check_size(cqe);
  if (!size.ok()) return size.error();
  if (comp_vector < 0 || comp_vector >= context->context.num_comp_vectors) {
    return Error{EINVAL, "comp_vector must be below the context's num_comp_vectors"};
  }
  if (channel != nullptr && channel->context != &context->context) {
    return Error{EINVAL, "the completion channel belongs to another context"};
  }
  const auto capacity = static_cast<uint32_t>(cqe);
  auto cq =
      std::make_unique<Cq>(*context->nic, channel != nullptr ? from(channel) : nullptr, capacity,
                           ring_of(options.domain, capacity), options.single_threaded);
  if (context->device->cqs.fetch_add(1) >= static_cast<int>(kMaxCqs)) {
    context->device->cqs.fetch_sub(1);
    return Error{ENOMEM, "too many completion queues (see max_cq)"};
  }
  cq->context = &context->context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->handle = context->last_cq.fetch_add(1) + 1;
  cq->cqe = cqe;
  pthread_mutex_init(&cq->mutex, nullptr);
  pthread_cond_init(&cq->cond, nullptr);
  cq->owner.object = cq->as_public();
  cq->owner.async_channel = context->async.get();
  cq->owner.lanes = &cq->lanes;
  if (channel != nullptr) {
    cq->owner.completion_channel = from(channel)->events.get();
    pthread_mutex_lock(&context->context.mutex);
    ++channel->refcnt;
    pthread_mutex_unlock(&context->context.mutex);
  }
  cq->queue.owner = &cq->owner;
  if (options.ignore_overrun) cq->queue.ignore_overrun();
  if (options.domain != nullptr) {
    cq->domain = options.domain;
    cq->domain->add_user();
  }
  context->add_user();
  if (narrating()) narrate_completion_queue(*cq->as_public());
  return cq.release();
}

namespace {

// A function of its own, so that poll_cq() is short if a completion is there.
[[gnu::noinline]] int make_progress(const Cq& cq) {
  return without_exceptions([&] {
    cq.lanes.turn_for_poller();
    return 0;
  });
}

}  // namespace

int poll_cq(ibv_cq* public_cq, int num_entries, ibv_wc* wc) {
  Cq& cq = *from(public_cq);
  if (cq.nic->is_abandoned()) [[unlikely]] {
    errno = EIO;
    return -EIO;
  }
  if (num_entries <= 0) return 0;
  if (cq.queue.empty()) {
    const int code = make_progress(cq);
    if (code != 0) [[unlikely]]
      return -code;
    if (cq.queue.empty()) return 0;
  }
  return static_cast<int>(take(cq, static_cast<uint32_t>(num_entries), wc));
}

int req_notify_cq(ibv_cq* public_cq, int solicited_only) {
  Cq& cq = *from(public_cq);
  if (cq.nic->is_abandoned()) return EIO;
  cq.nic->arm(cq.lanes, cq.queue, solicited_only != 0 ? core::Armed::Solicited : core::Armed::Any);
  return 0;
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context,
                                     ibv_comp_channel* channel, int comp_vector) {
  Cq* cq = object_of<Cq>("ibv_create_cq", [&] {
    return create_cq(from(context), cqe, cq_context, channel, comp_vector, {});
  });
  return cq != nullptr ? cq->as_public() : nullptr;
}

VERBENA_EXPORT int ibv_resize_cq(ibv_cq* cq, int cqe) {
  return status_of("ibv_resize_cq", [&] { return resize_cq(from(cq), cqe); });
}

VERBENA_EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  return status_of("ibv_destroy_cq", [&] { return destroy_cq(from(cq)); });
}

VERBENA_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  return object_of<ibv_comp_channel>("ibv_create_comp_channel",
                                     [&] { return create_channel(from(context)); });
}

VERBENA_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  return status_of("ibv_destroy_comp_channel", [&] { return destroy_channel(from(channel)); });
}

}  // extern "C"
