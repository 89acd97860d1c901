// SidrExchange: resolves a service ID to a queue pair for unconnected services (IBA 12.11): one
// SIDR_REQ, one SIDR_REP. The reply is kept for a while and replayed for late duplicates of the
// request.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/time.h"
#include "cm/agent_state.h"
#include "cm/messages.h"
#include "cm/parameters.h"
#include "cm/retry.h"

namespace verbena::cm {

class SidrExchange {
 public:
  enum class State : uint8_t { RequestSent, RequestReceived, Replied, Closed };

  // Active: sends SIDR_REQ. The caller has checked `parameters`.
  SidrExchange(AgentState& agent, uint32_t id, const SidrParameters& parameters, Instant now);
  // Passive: the caller has found the listener of `request`. Reports the request to the owner.
  SidrExchange(AgentState& agent, uint32_t id, const SidrReq& request, const IpHeader& ip,
               const wire::Gid& local_gid, const wire::Gid& peer_gid, uint32_t listener);

  Status reply(const SidrReply& parameters, Instant now);
  void abandon(Instant now);

  void on_duplicate_request();
  // As in Connection.
  bool waits_for(const wire::Gid& host, uint64_t tid) const;
  void on_host_unreachable(int error, Instant until, Instant now);
  void on_reply(const SidrRep& reply, Instant now);
  void on_deadline(Instant now);
  Instant deadline() const;

  uint32_t id() const { return id_; }
  uint32_t request_id() const { return request_id_; }
  State state() const { return state_; }
  bool owned() const { return owned_; }
  uint32_t listener() const { return listener_; }
  const SidrInfo& info() const { return info_; }
  const Retry& retry() const { return retry_; }

 private:
  void resend();
  Event event(EventKind kind) const;

  AgentState& agent_;
  uint32_t id_;
  uint32_t request_id_;
  uint64_t tid_;
  State state_;
  bool owned_ = true;
  uint32_t listener_ = 0;
  Retry retry_;
  Instant ends_ = kNever;  // Replied
  SidrInfo info_;
  Mad last_{};
};

}  // namespace verbena::cm
