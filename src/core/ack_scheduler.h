// AckScheduler: when a queue pair acknowledges the requests it has received, and in which form. The
// responder reports which requests it executed or refused, the requester which of its requests
// piggybacked an ACK, and QueuePair describes the batch that is about to leave. AckRequests decides
// which requests ask for an ACK (the A bit); this class decides when and how a due ACK leaves.
//
// Rules:
// - Coalesced: one ACK per batch acknowledges all requests before it. A NAK does so as well.
// - In PSN order: an ACK waits for the READ and atomic responses before it.
// - Place: see AckPlace.
// - Repeated: if the request that piggybacked the latest ACK is retracted, the ACK is due again.
// - Echo: between two Verbenas, the ACK has the BECN bit if one of the requests since the previous
//   ACK arrived with an ECN mark.
// - Delayed: the engine's owner may defer a batch while it expects the application to post a
//   request soon, so that both leave together (may_defer). The owner keeps the timer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "wire/headers.h"
#include "wire/packet_io.h"

namespace verbena::core {

enum class AckPlace : uint8_t {
  // Before the requests: the peer completes its message before it receives the reply.
  First,
  // Behind the requests: the short packet ends their GSO batch. The receiver still handles the ACK
  // first (ack_overtakes).
  Last,
  // Inside the only request of the batch; two Verbenas only.
  Piggybacked
};

// The batch that a queue pair is about to send.
struct BatchOutlook {
  bool only_active_qp;  // no other queue pair has packets in it
  bool on_wire;         // it leaves as GSO segments
  bool can_piggyback;   // a piggybacked ACK fits into its one request
};

// The packets that a turn may leave unsent, and the event that is expected to send them.
enum class Defer : uint8_t {
  Nothing,
  UntilPoll,   // everything: a steady poller that just got a completion polls or posts again
  UntilReply,  // ACKs: the application may reply to a WRITE into its memory
};

// A turn of the engine's owner, before it transmits.
struct TurnResult {
  bool brought_messages;  // SEND or WRITE: they need at most an ACK
  bool response_due;      // READ, atomic or MAD: the response leaves at once
  bool used_receives;     // some messages consumed a receive
  bool completed;         // the application has a completion to poll
  bool raises_event;      // a completion event is about to wake the application
  bool started_idle;      // nothing waited to be sent before the turn
  bool has_more;          // more packets wait to be received
  bool only_acks_to_send;
  size_t packets;  // received
};

class AckScheduler {
 public:
  // --- delay ------------------------------------------------------------------------------------
  // This many packets are a stream, whose sender waits for ACKs.
  static constexpr size_t kBurstPackets = 8;
  // Whether the turn may leave its batch unsent for a moment.
  static bool may_defer(Defer defer, const TurnResult& turn) {
    if (!turn.brought_messages || turn.response_due) return false;
    if (defer == Defer::UntilPoll) return turn.completed;
    // An earlier deferral is not extended. An application that waits for an event gets it after the
    // ACK has left, as with hardware.
    return defer == Defer::UntilReply && turn.started_idle && !turn.has_more &&
           !turn.used_receives && turn.packets < kBurstPackets && !turn.raises_event &&
           turn.only_acks_to_send;
  }

  // --- the responder's reports ------------------------------------------------------------------
  void on_ack_due() { is_due_ = true; }
  // The requests before `nak` are acknowledged by it.
  void on_refused(const wire::Aeth& nak) { nak_ = nak; }
  // A request was executed, so an earlier refusal no longer holds.
  void on_executed() { nak_.reset(); }
  // A request arrived with an ECN mark (CE), which the next ACK, response or piggybacked ACK
  // echoes.
  void on_marked() { has_echo_ = true; }
  // The BECN bit of an ACK or response that leaves now.
  bool take_echo() { return std::exchange(has_echo_, false); }
  bool has_echo() const { return has_echo_; }
  void on_sent() {
    is_due_ = false;
    nak_.reset();
  }
  // The connection ends: nothing is due any more.
  void reset() { *this = AckScheduler(); }

  bool is_due() const { return is_due_ || nak_.has_value(); }
  // A plain ACK is due, no NAK.
  bool is_plain() const { return is_due_ && !nak_; }
  const std::optional<wire::Aeth>& nak() const { return nak_; }

  // --- the batch --------------------------------------------------------------------------------
  static AckPlace place(const BatchOutlook& batch) {
    if (batch.can_piggyback) return AckPlace::Piggybacked;
    return batch.only_active_qp && batch.on_wire ? AckPlace::Last : AckPlace::First;
  }
  // Until close_offer() the next request may piggyback the ACK of `psn`.
  void offer(wire::Psn psn) { offered_ = psn; }
  void close_offer() { offered_.reset(); }

  // --- the requester's reports ------------------------------------------------------------------
  // The ACK that work request `index` of the send queue piggybacks, if one is offered.
  wire::OptionalPsn take_offer(uint64_t index) {
    const wire::OptionalPsn psn = offered_;
    if (psn) on_piggybacked(index);
    return psn;
  }
  void on_piggybacked(uint64_t index) {
    close_offer();
    is_due_ = false;
    piggybacked_by_ = index;
  }
  // Work requests [first, end) were retracted before the peer read them.
  void on_retracted(uint64_t first, uint64_t end) {
    if (piggybacked_by_ < first || piggybacked_by_ >= end) return;
    piggybacked_by_ = kNone;
    is_due_ = true;
  }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;

  bool is_due_ = false;
  bool has_echo_ = false;
  std::optional<wire::Aeth> nak_;
  wire::OptionalPsn offered_;
  uint64_t piggybacked_by_ = kNone;  // the work request that piggybacked the latest ACK
};

// Whether the second of `packets` is an ACK that must be handled before the first, a request. The
// peer sent both in one batch, the ACK last (AckPlace::Last). An application must see the
// completion of its own message before the reply to it. A NAK keeps its place: it may end the queue
// pair, and the request before it still counts.
bool ack_overtakes(std::span<const wire::RxPacket> packets);

}  // namespace verbena::core
