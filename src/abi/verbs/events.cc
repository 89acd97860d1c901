// Completion events and asynchronous events: taken from their channels, acknowledged per object.
#include <pthread.h>

#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"
#include "runtime/config.h"

namespace verbena::abi {
namespace {

using core::EventKind;

static_assert(IBV_EVENT_CQ_ERR == static_cast<int>(EventKind::CqError));
static_assert(IBV_EVENT_QP_FATAL == static_cast<int>(EventKind::QpFatal));
static_assert(IBV_EVENT_QP_REQ_ERR == static_cast<int>(EventKind::QpRequestError));
static_assert(IBV_EVENT_QP_ACCESS_ERR == static_cast<int>(EventKind::QpAccessError));
static_assert(IBV_EVENT_COMM_EST == static_cast<int>(EventKind::CommEstablished));
static_assert(IBV_EVENT_SQ_DRAINED == static_cast<int>(EventKind::SqDrained));
static_assert(IBV_EVENT_SRQ_ERR == static_cast<int>(EventKind::SrqError));
static_assert(IBV_EVENT_SRQ_LIMIT_REACHED == static_cast<int>(EventKind::SrqLimitReached));
static_assert(IBV_EVENT_QP_LAST_WQE_REACHED == static_cast<int>(EventKind::LastWqeReached));

enum class Subject : uint8_t { Cq, Qp, Srq, Port };

Subject subject_of(int event_type) {
  switch (event_type) {
    case IBV_EVENT_CQ_ERR:
      return Subject::Cq;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return Subject::Qp;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return Subject::Srq;
    default:
      return Subject::Port;
  }
}

// Called under the channel's lock.
void count_completion_event(const runtime::Event& event) {
  ++from(static_cast<ibv_cq*>(event.object))->completion_events_taken;
}

void count_async_event(const runtime::Event& event) {
  switch (subject_of(event.kind)) {
    case Subject::Cq:
      ++from(static_cast<ibv_cq*>(event.object))->async_events_taken;
      break;
    case Subject::Qp:
      ++from(static_cast<ibv_qp*>(event.object))->async_events_taken;
      break;
    case Subject::Srq:
      ++from(static_cast<ibv_srq*>(event.object))->async_events_taken;
      break;
    case Subject::Port:
      break;
  }
}

void acknowledge(pthread_mutex_t& mutex, pthread_cond_t& cond, uint32_t& completed,
                 uint32_t count) {
  pthread_mutex_lock(&mutex);
  completed += count;
  pthread_cond_signal(&cond);
  pthread_mutex_unlock(&mutex);
}

// Takes the next completion event. With VERBENA_POLL=hybrid the caller busy-polls first and makes
// progress meanwhile, so that an early event needs no wake-up.
int next_completion_event(runtime::Nic& nic, const CompletionChannel& channel,
                          runtime::Event* event) {
  runtime::EventChannel& events = *channel.events;
  if (const Duration awake = runtime::config().awake_before_sleep; awake.ns > 0) {
    int code = events.try_pop(event, count_completion_event);
    if (code != EAGAIN || events.nonblocking()) return code;
    for (const Instant until = runtime::now() + awake; runtime::now() < until;) {
      nic.lanes().each_of(channel.lanes, [](runtime::Lane& lane) { lane.turn_for_poller(); });
      code = events.try_pop(event, count_completion_event);
      if (code != EAGAIN) return code;
    }
  }
  // The last poll may have made this thread the progress owner.
  nic.lanes().each_of(channel.lanes, [](runtime::Lane& lane) { lane.poller_sleeps(); });
  return events.pop(event, count_completion_event);
}

// These two calls return -1 and errno. EAGAIN is not worth a log line.
int minus_one(int code) {
  errno = code;
  return -1;
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  runtime::Nic& nic = *from(channel->context)->nic;
  if (nic.is_abandoned()) return minus_one(EIO);
  runtime::Event event;
  const int code = next_completion_event(nic, *from(channel), &event);
  if (code != 0) return minus_one(code);
  *cq = static_cast<ibv_cq*>(event.object);
  *cq_context = (*cq)->cq_context;
  return 0;
}

VERBENA_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned int nevents) {
  acknowledge(cq->mutex, cq->cond, cq->comp_events_completed, nevents);
}

VERBENA_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  if (from(context)->nic->is_abandoned()) return minus_one(EIO);
  runtime::Event taken;
  const int code = from(context)->async->pop(&taken, count_async_event);
  if (code != 0) return minus_one(code);
  event->event_type = static_cast<ibv_event_type>(taken.kind);
  switch (subject_of(taken.kind)) {
    case Subject::Cq:
      event->element.cq = static_cast<ibv_cq*>(taken.object);
      break;
    case Subject::Qp:
      event->element.qp = static_cast<ibv_qp*>(taken.object);
      break;
    case Subject::Srq:
      event->element.srq = static_cast<ibv_srq*>(taken.object);
      break;
    case Subject::Port:
      event->element.port_num = 1;
      break;
  }
  return 0;
}

VERBENA_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  switch (subject_of(event->event_type)) {
    case Subject::Cq: {
      ibv_cq* cq = event->element.cq;
      acknowledge(cq->mutex, cq->cond, cq->async_events_completed, 1);
      break;
    }
    case Subject::Qp: {
      ibv_qp* qp = event->element.qp;
      acknowledge(qp->mutex, qp->cond, qp->events_completed, 1);
      break;
    }
    case Subject::Srq: {
      ibv_srq* srq = event->element.srq;
      acknowledge(srq->mutex, srq->cond, srq->events_completed, 1);
      break;
    }
    case Subject::Port:
      break;
  }
}

}  // extern "C"
