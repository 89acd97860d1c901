// The two halves of a queue pair, as interfaces for QueuePair. RC has Requester and Responder; each
// further transport has its own implementations.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "core/qp_common.h"

namespace verbena::core {

// The limits of one call of transmit().
struct TransmitTurn {
  uint32_t budget;      // packets
  bool only_active_qp;  // no other queue pair has anything to send
};

// The functions of every transport. Requester has further ones for reliable transports.
class SendSide {
 public:
  virtual ~SendSide() = default;

  // Checks and queues a request; returns the errno that ibv_post_send documents.
  virtual Status post(const SendRequest& request) = 0;
  // Removes the `count` requests that were posted last, in the same call.
  virtual void unpost(uint32_t count) = 0;

  // Returns the number of packets sent.
  virtual uint32_t transmit(wire::PacketSink& sink, Instant now, const TransmitTurn& turn) = 0;
  // Whether transmit() would send a packet.
  enum class Readiness : uint8_t { No, WaitsForWindow, Ready };
  virtual Readiness readiness(Instant now) = 0;
  // When the send side next needs a call although nothing is received.
  virtual Instant deadline() const { return kNever; }
  // A congestion notification from the peer, which is known.
  virtual void on_cnp(Instant now) = 0;

  // INIT -> RTR -> RTS: numbering starts at attr.sq_psn.
  virtual void start() = 0;
  // The bytes in flight count against the new window from now on (null: against none).
  virtual void change_peer(PeerPath* peer) = 0;
  // To RESET: drops everything without completions.
  virtual void reset() = 0;
  // Completes all queued requests, in order. `first` is the status of the request at the head.
  virtual void flush(WcStatus first) = 0;
  // Nothing is outstanding, as SQD requires.
  virtual bool drained() const = 0;
  virtual wire::Psn next_psn() const = 0;
};

class ReceiveSide {
 public:
  virtual ~ReceiveSide() = default;

  virtual Status post(const ReceiveRequest& request) = 0;

  virtual void on_request(const wire::Packet& packet, const wire::RxMeta& meta) = 0;
  // The same for the first packets of a run; returns their number. 0: nothing has changed.
  virtual size_t on_request_run(const wire::PacketRun&) { return 0; }

  // Sends READ data and atomic results that are due, at most `budget` packets. Returns how many.
  // `defer_last`: the last packet of a READ response, which has another size, waits for a later
  // call.
  virtual uint32_t send_responses(wire::PacketSink&, uint32_t, bool) { return 0; }
  // Sends the ACK or NAK that is due, if all responses before it have left. Returns 1 or 0.
  virtual uint32_t send_ack(wire::PacketSink&, AckPlace) { return 0; }
  // The PSN for a piggybacked ACK; empty if no ACK is due or the ACK needs a packet of its own.
  virtual wire::OptionalPsn ack_to_piggyback() const { return {}; }
  virtual bool ready() const { return false; }

  virtual void start() = 0;  // INIT -> RTR: expects attr.rq_psn first
  // For a new max_dest_rd_atomic. If it throws, nothing has changed.
  virtual void resize_resources(uint32_t) {}
  virtual void reset() = 0;
  virtual void flush() = 0;
  // A shared receive queue is destroyed, with the receive that is in use.
  virtual void forget_srq(const SharedReceiveQueue*) {}
  // The application moved the queue pair to ERR: pending responses are not sent.
  virtual void drop_responses() {}
  virtual wire::Psn expected_psn() const = 0;
};

}  // namespace verbena::core
