// PacketsOnly: the LocalPeer of a decorator (capture, faults). It passes packets only, so that a
// capture contains every byte and a fault can affect every request: no one-sided access, no short
// ACKs, no retraction.
#pragma once

#include "wire/local_peer.h"

namespace verbena::datapath {

class PacketsOnly final : public wire::LocalPeer {
 public:
  // Must not be used if `inner` is null.
  explicit PacketsOnly(const wire::LocalPeer* inner) : inner_(inner) {}

  bool is_full(wire::PathId path) const override { return inner_->is_full(path); }
  bool is_asleep(wire::PathId) const override { return false; }
  bool send_short_ack(wire::PathId, const wire::Ack&) override { return false; }
  bool access(const wire::OneSided&) override { return false; }
  bool retract(const wire::Unread&) override { return false; }

 private:
  const wire::LocalPeer* const inner_;
};

}  // namespace verbena::datapath
