// PeerExtensions: the capabilities of the Verbena at the other end, and the encoding of everything
// that only two Verbenas exchange. The rest of core uses this class and never sees a flag.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "core/ext/extension_flags.h"
#include "core/ext/sack_list.h"
#include "wire/packet.h"

namespace verbena::core {

class PeerExtensions {
 public:
  explicit PeerExtensions(bool enabled) : enabled_(enabled) {}

  // The queue pair has a new peer, whose capabilities are not known yet.
  void connect(wire::Qpn own, wire::Qpn peer) {
    *this = PeerExtensions(enabled_);
    if (!enabled_) return;
    own_ = flags_sent_by(own, peer);
    peer_ = flags_sent_by(peer, own);
  }

  // --- as requester -----------------------------------------------------------------------------
  // The peer buffers requests behind a gap, lists them in its NAKs, and accepts requests in any
  // order.
  bool peer_buffers_requests() const { return peer_buffers_requests_; }
  void on_response(const wire::Bth& bth) {
    if (bth.extension_flags != 0 && bth.extension_flags == peer_.sack_capable)
      peer_buffers_requests_ = true;
  }
  // The BECN bit of a response: a request since the previous response arrived with an ECN mark.
  bool has_echo(const wire::Bth& bth) const { return bth.becn && peer_buffers_requests_; }
  // The flag of a request. `reordered`: it leaves before one with a lower PSN.
  uint8_t request_flag(bool reordered) const {
    if (!peer_buffers_requests_) return 0;
    return reordered ? own_.reordered : own_.sack;
  }
  // The flag of a request that piggybacks an ACK: only if peer_buffers_requests().
  uint8_t piggyback_flag() const { return own_.piggyback; }

  // --- as responder -----------------------------------------------------------------------------
  // The sender of this request reads the echo of an ECN mark, and needs no CNP.
  bool peer_reads_echo(const wire::Bth& bth) const { return peer_reads_sack_ || shows_sack(bth); }
  // The peer reads SACK lists and has a congestion window.
  bool peer_reads_sack() const { return peer_reads_sack_; }
  // True: the first request that shows that the peer reads SACK lists.
  bool on_request(const wire::Bth& bth) {
    if (bth.extension_flags == 0 || peer_reads_sack_) return false;
    peer_reads_sack_ = shows_sack(bth);
    return peer_reads_sack_;
  }
  // A request in PSN order from a peer that reads SACK lists, without a piggybacked ACK.
  bool is_in_order(const wire::Bth& bth) const { return bth.extension_flags == peer_.sack; }
  // Requests with lower PSNs follow this one, so it is no sign of a loss.
  bool is_reordered(const wire::Bth& bth) const {
    return peer_reads_sack_ && bth.extension_flags == peer_.reordered;
  }
  // The flag of a response. The first response announces the capability, as does each one that
  // reports or follows a loss (`always`).
  uint8_t response_flag(bool always) {
    if (always) return own_.sack_capable;
    return std::exchange(announced_, true) ? 0 : own_.sack_capable;
  }
  uint8_t sack_flag() const { return own_.sack_capable; }
  bool announced() const { return announced_; }
  // The response that announced the capability may be lost.
  void announce_again() { announced_ = false; }

  // --- piggybacked ACKs -------------------------------------------------------------------------
  bool has_piggyback(const wire::Bth& bth) const {
    return bth.extension_flags != 0 && bth.extension_flags == peer_.piggyback;
  }
  // Removes the ACK from the packet; empty if there is none.
  wire::OptionalPsn take_piggyback(wire::Packet& p) const {
    const wire::OptionalPsn last = peek_piggyback(p);
    std::span<const std::byte>& holder = p.in_front.empty() ? p.payload : p.in_front;
    if (last) holder = holder.subspan(kPiggybackBytes);
    return last;
  }
  wire::OptionalPsn peek_piggyback(const wire::Packet& p) const {
    const std::span<const std::byte>& holder = p.in_front.empty() ? p.payload : p.in_front;
    if (!has_piggyback(p.bth) || holder.size() < kPiggybackBytes) return std::nullopt;
    return wire::Psn(load_be32(holder.data()) & 0xFFFFFF);
  }

 private:
  // A requester that reads SACK lists sent this request.
  bool shows_sack(const wire::Bth& bth) const {
    return bth.extension_flags != 0 &&
           (bth.extension_flags == peer_.sack || bth.extension_flags == peer_.reordered ||
            bth.extension_flags == peer_.piggyback);
  }

  bool enabled_;
  bool peer_buffers_requests_ = false;
  bool peer_reads_sack_ = false;
  bool announced_ = false;
  ExtensionFlags own_;
  ExtensionFlags peer_;
};

}  // namespace verbena::core
