// The state machine of one SIDR request and its reply.
#include "cm/sidr.h"

#include <algorithm>
#include <cerrno>

namespace verbena::cm {
namespace {

constexpr uint8_t kReplyKept = 18;  // 1.1 s

}  // namespace

SidrExchange::SidrExchange(AgentState& agent, uint32_t id, const SidrParameters& p, Instant now)
    : agent_(agent),
      id_(id),
      request_id_(id),
      tid_(agent.draw_tid()),
      state_(State::RequestSent),
      retry_(agent.config.first_retry, iba_time(std::min(p.response_timeout, kMaxResponseTimeout)),
             std::min(p.max_cm_retries, kMaxRetries), now),
      info_{p.addresses, true, p.pkey, p.traffic_class} {
  info_.addresses.peer_port = port_of(p.addresses.service_id);
  SidrReq request;
  request.tid = tid_;
  request.request_id = request_id_;
  request.pkey = p.pkey;
  request.service_id = p.addresses.service_id;
  IpHeader{p.addresses.local_port, p.addresses.local_ip, p.addresses.peer_ip}.store(
      request.private_data.data());
  std::copy(p.private_data.begin(), p.private_data.end(),
            request.private_data.begin() + IpHeader::kBytes);
  request.store(last_);
  resend();
}

SidrExchange::SidrExchange(AgentState& agent, uint32_t id, const SidrReq& request,
                           const IpHeader& ip, const wire::Gid& local_gid,
                           const wire::Gid& peer_gid, uint32_t listener)
    : agent_(agent),
      id_(id),
      request_id_(request.request_id),
      tid_(request.tid),
      state_(State::RequestReceived),
      listener_(listener) {
  info_.addresses = {
      local_gid,      peer_gid,          ip.destination, ip.source, port_of(request.service_id),
      ip.source_port, request.service_id};
  info_.pkey = request.pkey;
  Event e = event(EventKind::SidrRequest);
  e.listener = listener;
  e.private_data = PrivateData(std::span(request.private_data).subspan(IpHeader::kBytes));
  agent_.report(e);
}

Status SidrExchange::reply(const SidrReply& parameters, Instant now) {
  if (state_ != State::RequestReceived) {
    return Error{EINVAL, "this request already has a reply"};
  }
  if (parameters.private_data.size() > SidrRep::kPrivateBytes) {
    return Error{EINVAL, "the private data exceeds the capacity of the message"};
  }
  SidrRep rep;
  rep.tid = tid_;
  rep.ece_options = parameters.ece.options;
  rep.vendor_id = parameters.ece.vendor_id;
  rep.request_id = request_id_;
  rep.status = parameters.status;
  rep.service_id = info_.addresses.service_id;
  if (parameters.status == SidrStatus::Success) {
    rep.qpn = parameters.qpn;
    rep.qkey = parameters.qkey;
  }
  std::copy(parameters.private_data.begin(), parameters.private_data.end(),
            rep.private_data.begin());
  rep.store(last_);
  resend();
  state_ = State::Replied;
  owned_ = false;
  ends_ = now + iba_time(kReplyKept);
  return {};
}

void SidrExchange::abandon(Instant now) {
  if (state_ == State::RequestReceived) {
    SidrReply refusal;
    refusal.status = SidrStatus::Reject;
    (void)reply(refusal, now);
  } else if (state_ == State::RequestSent) {
    state_ = State::Closed;
  }
  owned_ = false;
}

void SidrExchange::on_duplicate_request() {
  agent_.counters.add(CounterId::duplicates);
  if (state_ == State::Replied) resend();
}

void SidrExchange::on_reply(const SidrRep& reply, Instant now) {
  if (state_ != State::RequestSent) return agent_.counters.add(CounterId::unexpected);
  if (reply.status == SidrStatus::UnsupportedServiceId && retry_.retry_after_refusal(now)) return;
  Event e = event(EventKind::SidrResponse);
  e.sidr_status = reply.status;
  e.qpn = reply.qpn;
  e.qkey = reply.qkey;
  e.private_data = PrivateData(reply.private_data);
  agent_.report(e);
  state_ = State::Closed;
}

bool SidrExchange::waits_for(const wire::Gid& host, uint64_t tid) const {
  return state_ == State::RequestSent && info_.addresses.peer_gid == host && tid_ == tid;
}

void SidrExchange::on_host_unreachable(int error, Instant until, Instant) {
  if (state_ != State::RequestSent) return;
  if (!retry_.has_retransmitted() || retry_.first_sent() > until) return;
  const bool refused = error == ECONNREFUSED;
  Event e = event(refused ? EventKind::SidrResponse : EventKind::Unreachable);
  if (refused) {
    e.sidr_status = SidrStatus::UnsupportedServiceId;
  } else {
    e.error = error;
  }
  agent_.report(e);
  state_ = State::Closed;
}

Instant SidrExchange::deadline() const {
  switch (state_) {
    case State::RequestSent:
      return retry_.deadline();
    case State::Replied:
      return ends_;
    default:
      return kNever;
  }
}

void SidrExchange::on_deadline(Instant now) {
  if (now < deadline()) return;
  if (state_ == State::Replied) {
    state_ = State::Closed;
  } else if (retry_.use_retry(now)) {
    agent_.counters.add(CounterId::retransmissions);
    resend();
  } else {
    agent_.counters.add(CounterId::timeouts);
    Event e = event(EventKind::Unreachable);
    e.error = ETIMEDOUT;
    agent_.report(e);
    state_ = State::Closed;
  }
}

void SidrExchange::resend() { agent_.send_bytes(last_, info_.addresses, info_.traffic_class); }

Event SidrExchange::event(EventKind kind) const {
  Event e;
  e.kind = kind;
  e.id = id_;
  e.active = info_.active;
  e.peer = info_.addresses.peer_ip;
  e.port = port_of(info_.addresses.service_id);
  return e;
}

}  // namespace verbena::cm
