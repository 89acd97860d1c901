// PacketsOnly: what decorators (capture, faults) leave of a LocalPeer. All that crosses them is a
// packet, so that a capture shows every byte and a fault can hit every request: no access to the
// peer's memory, no ACK in its short form, nothing retracted.
#pragma once

#include "wire/local_peer.h"

namespace verbena::datapath {

class PacketsOnly final : public wire::LocalPeer {
 public:
  // Not used where `inner` is null.
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
