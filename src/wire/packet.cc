// Extension headers of every opcode.
#include "wire/packet.h"

namespace verbena::wire {

void load_all_extensions(Packet& p, const std::byte* at) {
  if (p.op.has_deth) {
    p.deth = Deth::load(at);
    at += kDethBytes;
  }
  if (p.op.has_xrc_eth) {
    p.xrc_srqn = load_be24(at + 1);
    at += kXrcEthBytes;
  }
  if (p.op.has_flush_eth) {
    p.flush = FlushEth::load(at);
    at += kFlushEthBytes;
  }
  if (p.op.has_reth) {
    p.reth = Reth::load(at);
    at += kRethBytes;
  }
  if (p.op.has_atomic_eth) {
    p.atomic = AtomicEth::load(at);
    at += kAtomicEthBytes;
  }
  if (p.op.has_aeth) {
    p.aeth = Aeth::load(at);
    at += kAethBytes;
  }
  if (p.op.has_atomic_ack_eth) {
    p.original = load_be64(at);
    at += kAtomicAckEthBytes;
  }
  if (p.op.has_immediate) p.immediate = load_be32(at);
  if (p.op.has_invalidate) p.invalidate_rkey = load_be32(at);
}

}  // namespace verbena::wire
