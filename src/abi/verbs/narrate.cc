// Debug log of a program's steps.
#include "abi/verbs/narrate.h"

#include <array>
#include <cstdio>
#include <mutex>
#include <string>

#include "abi/verbs/c_enum.h"
#include "abi/verbs/context.h"
#include "abi/verbs/qp_attributes.h"
#include "runtime/failure_text.h"

namespace verbena::abi {
namespace {

// Logs one line; counts repetitions of a line, such as receives posted in a loop.
class StepLog {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    if (line == last_) {
      ++repeated_;
      return;
    }
    end_repetition();
    runtime::log(runtime::LogLevel::Debug, "%s", line.c_str());
    last_ = line;
  }

 private:
  void end_repetition() {
    if (repeated_ > 0)
      runtime::log(runtime::LogLevel::Debug, "... repeated %u times more", repeated_);
    repeated_ = 0;
  }
  std::mutex mutex_;
  std::string last_;
  unsigned repeated_ = 0;
};

template <typename... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, arguments...);
  return text;
}

// Never destroyed: threads may still poll while the process exits.
StepLog& step_log() {
  static auto* const one = new StepLog;
  return *one;
}

template <typename... Arguments>
void log_step(const char* pattern, Arguments... arguments) {
  step_log().add(format(pattern, arguments...));
}

template <size_t kSize>
const char* pick(const std::array<const char*, kSize>& names, size_t value) {
  return value < kSize ? names[value] : "?";
}

constexpr std::array kStates = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

const char* name_of(ibv_qp_state state) { return pick(kStates, number_of(state)); }

const char* name_of(ibv_qp_type type) {
  switch (number_of(type)) {
    case IBV_QPT_RC:
      return "RC";
    case IBV_QPT_UC:
      return "UC";
    case IBV_QPT_UD:
      return "UD";
    case IBV_QPT_XRC_SEND:
      return "XRC, sending";
    default:
      return "XRC, receiving";
  }
}

std::string permissions(unsigned access) {
  std::string text;
  for (const auto& [flag, name] : {std::pair{IBV_ACCESS_REMOTE_WRITE, "WRITE"},
                                   {IBV_ACCESS_REMOTE_READ, "READ"},
                                   {IBV_ACCESS_REMOTE_ATOMIC, "atomics"}}) {
    if ((access & flag) != 0) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text.empty() ? "nothing" : text;
}

uint64_t length_of(const ibv_sge* list, int count) {
  uint64_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += list[i].length;
  return bytes;
}

void tell_send(uint32_t qpn, const char* name, uint64_t id, uint64_t bytes, unsigned flags) {
  log_step("QP 0x%06x: posted %s, wr_id %llu: %llu bytes%s%s", qpn, name,
           static_cast<unsigned long long>(id), static_cast<unsigned long long>(bytes),
           (flags & IBV_SEND_INLINE) != 0 ? ", inline" : "",
           (flags & IBV_SEND_SIGNALED) != 0 ? ", signaled" : "");
}

void tell_completion(uint32_t qpn, uint64_t id, ibv_wc_status status, ibv_wc_opcode opcode,
                     uint32_t bytes) {
  const auto number = static_cast<unsigned long long>(id);
  if (status != IBV_WC_SUCCESS) {
    log_step("QP 0x%06x: completed wr_id %llu: %s", qpn, number, ibv_wc_status_str(status));
  } else if ((number_of(opcode) & IBV_WC_RECV) != 0) {
    log_step("QP 0x%06x: completed wr_id %llu: %u bytes received", qpn, number, bytes);
  } else {
    log_step("QP 0x%06x: completed wr_id %llu", qpn, number);
  }
}

// --- wrappers of the real functions; errors are logged elsewhere

int told_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  const ibv_send_wr* const first = wr;
  const int code = post_send(qp, wr, bad_wr);
  const ibv_send_wr* const end = code != 0 ? *bad_wr : nullptr;
  for (const ibv_send_wr* w = first; w != end; w = w->next) {
    tell_send(qp->qp_num, name_of(static_cast<core::SendOp>(number_of(w->opcode))), w->wr_id,
              length_of(w->sg_list, w->num_sge), w->send_flags);
  }
  return code;
}

void tell_receives(const char* where, uint32_t number, const ibv_recv_wr* first,
                   const ibv_recv_wr* end) {
  for (const ibv_recv_wr* w = first; w != end; w = w->next) {
    log_step("%s 0x%06x: posted receive, wr_id %llu: %llu bytes", where, number,
             static_cast<unsigned long long>(w->wr_id),
             static_cast<unsigned long long>(length_of(w->sg_list, w->num_sge)));
  }
}

int told_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  const int code = post_recv(qp, wr, bad_wr);
  tell_receives("QP", qp->qp_num, wr, code != 0 ? *bad_wr : nullptr);
  return code;
}

int told_post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  const int code = post_srq_recv(srq, wr, bad_wr);
  tell_receives("SRQ", srq->handle, wr, code != 0 ? *bad_wr : nullptr);
  return code;
}

int told_poll_cq(ibv_cq* cq, int num_entries, ibv_wc* wc) {
  const int found = poll_cq(cq, num_entries, wc);
  for (int i = 0; i < found; ++i)
    tell_completion(wc[i].qp_num, wc[i].wr_id, wc[i].status, wc[i].opcode, wc[i].byte_len);
  return found;
}

int told_req_notify_cq(ibv_cq* cq, int solicited_only) {
  const int code = req_notify_cq(cq, solicited_only);
  if (code == 0) log_step("completion queue %u: the next completion raises an event", cq->handle);
  return code;
}

}  // namespace

void narrate_region(const ibv_mr& mr, unsigned access) {
  log_step("memory registered: %zu bytes at %p, lkey 0x%08x, rkey 0x%08x; peers may: %s", mr.length,
           mr.addr, mr.lkey, mr.rkey, permissions(access).c_str());
}

void narrate_completion_queue(const ibv_cq& cq) {
  log_step("completion queue %u created: %d entries%s", cq.handle, cq.cqe,
           cq.channel != nullptr ? ", with events" : "");
}

void narrate_queue_pair(const ibv_qp& qp, const ibv_qp_cap& cap) {
  log_step("QP 0x%06x created: %s, up to %u sends and %u receives posted", qp.qp_num,
           name_of(qp.qp_type), cap.max_send_wr, cap.max_recv_wr);
}

void narrate_change(const ibv_qp& qp, ibv_qp_state before, const ibv_qp_attr& attr, int mask) {
  const auto set = [&](int bit) { return (mask & bit) != 0; };
  std::string details;
  const auto add = [&]<typename... Values>(const char* pattern, Values... values) {
    details += (details.empty() ? ": " : ", ") + format(pattern, values...);
  };
  if (set(IBV_QP_ACCESS_FLAGS)) add("peers may: %s", permissions(attr.qp_access_flags).c_str());
  if (set(IBV_QP_DEST_QPN)) add("peer QP 0x%06x", attr.dest_qp_num);
  if (set(IBV_QP_AV)) add("at %s", runtime::to_text(to_core(attr).address.destination).c_str());
  if (set(IBV_QP_PATH_MTU)) add("path MTU %u", 128u << number_of(attr.path_mtu));
  if (set(IBV_QP_RQ_PSN)) add("the peer's first PSN is 0x%06x", attr.rq_psn);
  if (set(IBV_QP_SQ_PSN)) add("our first PSN is 0x%06x", attr.sq_psn);
  if (set(IBV_QP_TIMEOUT))
    add("timeout %u (%.3g ms)", attr.timeout,
        attr.timeout != 0 ? 0.004096 * (1u << (attr.timeout & 31)) : 0.0);
  if (set(IBV_QP_RETRY_CNT)) add("%u retries", attr.retry_cnt);
  if (set(IBV_QP_RNR_RETRY))
    add("RNR retries: %s",
        attr.rnr_retry == 7 ? "unlimited" : std::to_string(attr.rnr_retry).c_str());
  if (set(IBV_QP_STATE)) {
    log_step("QP 0x%06x: %s to %s%s", qp.qp_num, name_of(before), name_of(attr.qp_state),
             details.c_str());
  } else {
    log_step("QP 0x%06x: changed in %s%s", qp.qp_num, name_of(before), details.c_str());
  }
}

void narrate_posted(const ibv_qp& qp, std::span<const core::SendRequest> requests) {
  for (const core::SendRequest& r : requests) {
    uint64_t bytes = 0;
    for (const core::Sge& sge : r.sges) bytes += sge.length;
    tell_send(qp.qp_num, name_of(r.op), r.wr_id, bytes, r.flags);
  }
}

void narrate_calls(ibv_context_ops& operations) {
  operations.post_send = told_post_send;
  operations.post_recv = told_post_recv;
  operations.post_srq_recv = told_post_srq_recv;
  operations.poll_cq = told_poll_cq;
  operations.req_notify_cq = told_req_notify_cq;
}

void narrate_calls(ibv_cq_ex& cq) {
  static const auto kStart = cq.start_poll;
  static const auto kNext = cq.next_poll;
  static const auto kTold = [](ibv_cq_ex* polled, int code) {
    if (code == 0) {
      tell_completion(polled->read_qp_num(polled), polled->wr_id, polled->status,
                      polled->read_opcode(polled), polled->read_byte_len(polled));
    }
    return code;
  };
  cq.start_poll = [](ibv_cq_ex* polled, ibv_poll_cq_attr* attr) {
    return kTold(polled, kStart(polled, attr));
  };
  cq.next_poll = [](ibv_cq_ex* polled) { return kTold(polled, kNext(polled)); };
}

}  // namespace verbena::abi
