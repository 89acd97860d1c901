// Connection: one connection from REQ to the end of TIMEWAIT (IBA 12.9). It is a pure state
// machine: the agent passes it its messages and the time. It keeps the last message that it sent,
// for retransmission.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/time.h"
#include "cm/agent_state.h"
#include "cm/messages.h"
#include "cm/parameters.h"
#include "cm/retry.h"

namespace verbena::cm {

class Connection {
 public:
  enum class State : uint8_t {
    ReqSent,      // active: waits for REP
    RepReceived,  // active: waits for the owner
    ReqReceived,  // passive: waits for the owner
    RepSent,      // passive: waits for RTU
    Established,
    DreqSent,    // waits for DREP
    TimeWait,    // was connected; the peer's queue pair number stays reserved
    Remembered,  // never connected: replays our REJ for late duplicates
    Closed,      // the agent removes it
  };

  // Active: sends REQ. The caller has checked `parameters`.
  Connection(AgentState& agent, uint32_t id, const ConnectParameters& parameters, Instant now);
  // Passive: the caller has checked `req` and found its listener. Reports the request to the owner.
  Connection(AgentState& agent, uint32_t id, const Req& req, const IpHeader& ip,
             const wire::Gid& local_gid, uint32_t listener);

  // --- calls of the owner -----------------------------------------------------------------------
  Status accept(const AcceptParameters& parameters, Instant now);
  Status establish(std::span<const std::byte> private_data);
  Status reject(RejectReason reason, std::span<const std::byte> ari,
                std::span<const std::byte> private_data, Instant now);
  Status disconnect(std::span<const std::byte> private_data, Instant now);
  Status notify_established();  // data has arrived on the queue pair: equivalent to RTU
  // The owner drops the connection: it ends without events.
  void abandon(Instant now);

  // --- messages of the peer, and time -----------------------------------------------------------
  void on_duplicate_req();
  void on_rep(const Rep& rep);
  void on_rtu(const Rtu& rtu);
  void on_mra(const Mra& mra, Instant now);
  void on_rej(const Rej& rej, Instant now);
  void on_dreq(const Dreq& dreq, Instant now);
  void on_drep(const Drep& drep, Instant now);
  // The peer's process has ended without a DREQ.
  void on_peer_gone(Instant now);
  // Whether the connection waits for the reply to this datagram.
  bool waits_for(const wire::Gid& host, uint64_t tid) const;
  // The network returned a datagram that was sent at `until`.
  void on_host_unreachable(int error, Instant until, Instant now);
  void on_deadline(Instant now);
  Instant deadline() const;

  uint32_t id() const { return id_; }
  uint32_t remote_id() const { return remote_id_; }  // 0: unknown
  uint64_t req_tid() const { return req_tid_; }
  State state() const { return state_; }
  bool owned() const { return owned_; }
  uint32_t listener() const { return listener_; }
  const ConnectionInfo& info() const { return info_; }
  const Retry& retry() const { return retry_; }
  // While this is true, a REQ or REP from the same queue pair of the peer is stale.
  bool reserves_remote_qpn() const;

 private:
  Status start_disconnect(std::span<const std::byte> private_data, Instant now);
  void end_connected(Instant now);
  void remember(const Rej& rej, Instant now);
  void give_up(Instant now);
  void resend();
  Rej make_rej(RejectReason reason) const;
  Rej refusal_of_req() const;
  Mra make_mra(About about);
  Drep drep_for(const Dreq& dreq) const;
  template <typename Message>
  void send(const Message& message);
  template <typename Message>
  void send_and_keep(const Message& message);
  Event event(EventKind kind) const;
  void report(const Event& event);

  AgentState& agent_;
  uint32_t id_;
  uint32_t remote_id_ = 0;
  uint64_t req_tid_;
  State state_;
  bool owned_ = true;
  bool mra_sent_ = false;  // the peer knows our ID
  uint8_t max_retries_;
  uint32_t listener_ = 0;
  Duration response_wait_;
  Retry retry_;
  Instant ends_ = kNever;  // TimeWait and Remembered
  ConnectionInfo info_;
  Mad last_{};
};

}  // namespace verbena::cm
