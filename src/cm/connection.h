// Connection: one communication of the connected services, from REQ to the end of TIMEWAIT (IBA
// 12.9). A pure state machine: its agent hands it the messages that belong to it and the time. It
// keeps the last message it sent, to send it again when it or its answer was lost.
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
    RepReceived,  // active: waits for our owner
    ReqReceived,  // passive: waits for our owner
    RepSent,      // passive: waits for RTU
    Established,
    DreqSent,    // waits for DREP
    TimeWait,    // was connected; the peer's queue pair number stays reserved
    Remembered,  // never connected: only there to repeat our REJ to late copies of the peer's
                 // messages
    Closed,      // the agent forgets it
  };

  // Active: sends REQ. `parameters` were checked.
  Connection(AgentState& agent, uint32_t id, const ConnectParameters& parameters, Instant now);
  // Passive: `req` was checked and matched to a listener. Tells the owner.
  Connection(AgentState& agent, uint32_t id, const Req& req, const IpHeader& ip,
             const wire::Gid& local_gid, uint32_t listener);

  // --- the owner's calls ------------------------------------------------------------------------
  Status accept(const AcceptParameters& parameters, Instant now);
  Status establish(std::span<const std::byte> private_data);
  Status reject(RejectReason reason, std::span<const std::byte> ari,
                std::span<const std::byte> private_data, Instant now);
  Status disconnect(std::span<const std::byte> private_data, Instant now);
  Status notify_established();  // data arrived on the queue pair: as good as RTU
  // The owner has no more interest: ends what goes on, without events.
  void abandon(Instant now);

  // --- messages of the peer, and time -----------------------------------------------------------
  void on_duplicate_req();
  void on_rep(const Rep& rep);
  void on_rtu(const Rtu& rtu);
  void on_mra(const Mra& mra, Instant now);
  void on_rej(const Rej& rej, Instant now);
  void on_dreq(const Dreq& dreq, Instant now);
  void on_drep(const Drep& drep, Instant now);
  // Its process is gone without a word.
  void on_peer_gone(Instant now);
  // Whether this is the datagram that it waits for an answer to.
  bool waits_for(const wire::Gid& host, uint64_t tid) const;
  // Nobody was there for what left until then.
  void on_host_absent(int error, Instant until, Instant now);
  void on_deadline(Instant now);
  Instant deadline() const;

  uint32_t id() const { return id_; }
  uint32_t remote_id() const { return remote_id_; }  // 0 while it is unknown
  uint64_t req_tid() const { return req_tid_; }
  State state() const { return state_; }
  bool owned() const { return owned_; }
  uint32_t listener() const { return listener_; }
  const ConnectionInfo& info() const { return info_; }
  const Retry& retry() const { return retry_; }
  // While this holds, a REQ or REP from the same queue pair of the peer is stale.
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
  Drep answer(const Dreq& dreq) const;
  template <typename Message>
  void send(const Message& message);
  template <typename Message>
  void send_and_keep(const Message& message);
  Event event(EventKind kind) const;
  void tell(const Event& event);

  AgentState& agent_;
  uint32_t id_;
  uint32_t remote_id_ = 0;
  uint64_t req_tid_;
  State state_;
  bool owned_ = true;
  bool mra_sent_ = false;  // the peer knows our id already
  uint8_t max_retries_;
  uint32_t listener_ = 0;
  Duration response_wait_;
  Retry retry_;
  Instant ends_ = kNever;  // TimeWait and Remembered
  ConnectionInfo info_;
  Mad last_{};
};

}  // namespace verbena::cm
