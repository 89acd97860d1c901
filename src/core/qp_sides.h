// The two halves of a queue pair as QueuePair sees them, whatever the transport. RC has Requester
// and Responder; each further transport brings its own pair and leaves these alone.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "core/qp_common.h"

namespace verbena::core {

// What a queue pair may send in one turn.
struct TransmitTurn {
  uint32_t budget;      // packets
  bool only_active_qp;  // no other queue pair has anything to send
};

// What every transport has. The rest of a reliable one is Requester's own.
class SendSide {
 public:
  virtual ~SendSide() = default;

  // Checks and queues a request; the errno is what ibv_post_send documents.
  virtual Status post(const SendRequest& request) = 0;
  // Forgets the `count` requests that were posted last; nothing has happened since.
  virtual void unpost(uint32_t count) = 0;

  // Sends what may be sent. Returns the number of packets.
  virtual uint32_t transmit(wire::PacketSink& sink, Instant now, const TransmitTurn& turn) = 0;
  // Whether transmit() would find something to do.
  enum class Readiness : uint8_t { No, WaitsForWindow, Ready };
  virtual Readiness readiness(Instant now) = 0;
  // When transmit() has something to do although nothing happens before.
  virtual Instant deadline() const { return kNever; }

  // INIT -> RTR -> RTS: numbering starts at attr.sq_psn.
  virtual void start() = 0;
  // What is under way counts against the new window from now on (null: against none).
  virtual void change_peer(PeerPath* peer) = 0;
  // Back to RESET: forgets everything without completions.
  virtual void reset() = 0;
  // Completes whatever is queued, in order. `first` is how the request at the head failed.
  virtual void flush(WcStatus first) = 0;
  // Nothing is under way (what SQD waits for).
  virtual bool drained() const = 0;
  virtual wire::Psn next_psn() const = 0;
};

class ReceiveSide {
 public:
  virtual ~ReceiveSide() = default;

  virtual Status post(const ReceiveRequest& request) = 0;

  virtual void on_request(const wire::Packet& packet, const wire::RxMeta& meta) = 0;

  // Sends READ data and atomic results that are due, at most `budget` packets. Returns how many.
  // `last_later`: not the last packet of a READ's data along with those before it, which are of
  // another size.
  virtual uint32_t send_responses(wire::PacketSink&, uint32_t, bool) { return 0; }
  // Sends the ACK or NAK that is due, if all responses before it have left. Returns 1 or 0.
  virtual uint32_t send_ack(wire::PacketSink&, AckPlace) { return 0; }
  // The PSN that a piggybacked ACK would have; none if no ACK is due or only a packet of its own
  // can say what there is to say.
  virtual std::optional<wire::Psn> ack_to_piggyback() const { return {}; }
  virtual bool ready() const { return false; }

  virtual void start() = 0;  // INIT -> RTR: expects attr.rq_psn first
  // max_dest_rd_atomic is about to be this. If it throws, nothing has changed.
  virtual void resize_resources(uint32_t) {}
  virtual void reset() = 0;
  virtual void flush() = 0;
  // A shared receive queue goes away: what is held of it goes too.
  virtual void forget_srq(const SharedReceiveQueue*) {}
  // The application moved the queue pair to ERR: what was still to be answered is not.
  virtual void drop_responses() {}
  virtual wire::Psn expected_psn() const = 0;
};

}  // namespace verbena::core
