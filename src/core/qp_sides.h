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

class SendSide {
 public:
  virtual ~SendSide() = default;

  // Checks and queues a request; the errno is what ibv_post_send documents.
  virtual Status post(const SendRequest& request) = 0;
  // Forgets the `count` requests that were posted last; nothing has happened since.
  virtual void take_back(uint32_t count) = 0;

  // Sends what may be sent. Returns the number of packets.
  virtual uint32_t transmit(wire::PacketSink& sink, Instant now, const TransmitTurn& turn) = 0;
  // The next request, if it leaves now, is the only one and has room for a piggybacked ACK.
  virtual bool can_piggyback(const wire::PacketSink&, Instant) const { return false; }
  // Whether transmit() would find something to do.
  enum class Readiness : uint8_t { No, WaitsForWindow, Ready };
  virtual Readiness readiness(Instant now) = 0;
  // Sends the one packet that QpCommon::urgent is about. 1 or 0.
  virtual uint32_t send_urgent(wire::PacketSink&, Instant) { return 0; }

  // The way to the peer is full: what was ready to leave does not.
  virtual void on_hold(Instant) {}
  // It has room again.
  virtual void on_room(Instant) {}
  // Packets now carry as much as the path MTU says, and no more.
  virtual void on_narrow_path() {}
  // The way to the peer is full: does what can be done without it.
  virtual void go_without_peer(wire::PacketSink&, Instant) {}

  virtual void on_response(const wire::Packet&, Instant) {}
  // A request of the peer piggybacked the ACK of this PSN.
  virtual void on_piggybacked_ack(wire::Psn, Instant) {}
  virtual void on_deadline(Instant) {}
  virtual Instant deadline() const { return kNever; }

  // max_rd_atomic is about to be this. If it throws, nothing has changed.
  virtual void reserve_reads(uint32_t) {}
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
  virtual bool has_reads_queued() const { return false; }
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
  virtual uint32_t send_answers(wire::PacketSink&, uint32_t, bool) { return 0; }
  // Sends the ACK or NAK that is due, if all responses before it have left. Returns 1 or 0.
  virtual uint32_t send_ack(wire::PacketSink&, AckPlace) { return 0; }
  // The PSN that a piggybacked ACK would have; none if no ACK is due or only a packet of its own
  // can say what there is to say.
  virtual std::optional<wire::Psn> ack_to_piggyback() const { return {}; }
  virtual bool ready() const { return false; }

  virtual void start() = 0;  // INIT -> RTR: expects attr.rq_psn first
  // max_dest_rd_atomic is about to be this. If it throws, nothing has changed.
  virtual void resize_answers(uint32_t) {}
  virtual void reset() = 0;
  virtual void flush() = 0;
  // A shared receive queue goes away: what is held of it goes too.
  virtual void forget_srq(const SharedReceiveQueue*) {}
  // The application moved the queue pair to ERR: what was still to be answered is not.
  virtual void forget_answers() {}
  virtual wire::Psn expected_psn() const = 0;
};

}  // namespace verbena::core
