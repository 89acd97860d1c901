// Extension headers of every opcode. Their order is DETH or XRCETH, then FETH, then RETH or
// AtomicETH or AETH, then the others.
#include "wire/packet.h"

#include <cstring>

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

void store_all_extensions(const Packet& p, std::byte* at) {
  const OpcodeInfo& op = info_of(p.bth.opcode);
  if (op.has_deth) {
    p.deth.store(at);
    at += kDethBytes;
  }
  if (op.has_xrc_eth) {
    store_be32(at, p.xrc_srqn & 0xFFFFFF);
    at += kXrcEthBytes;
  }
  if (op.has_flush_eth) {
    p.flush.store(at);
    at += kFlushEthBytes;
  }
  if (op.has_reth) {
    p.reth.store(at);
    at += kRethBytes;
  }
  if (op.has_atomic_eth) {
    p.atomic.store(at);
    at += kAtomicEthBytes;
  }
  if (op.has_aeth) {
    p.aeth.store(at);
    at += kAethBytes;
  }
  if (op.has_atomic_ack_eth) {
    store_be64(at, p.original);
    at += kAtomicAckEthBytes;
  }
  if (op.has_immediate) {
    store_be32(at, p.immediate);
    at += kImmediateBytes;
  }
  if (op.has_invalidate) store_be32(at, p.invalidate_rkey);
  if (op.verb == Verb::Cnp) std::memset(at, 0, kCnpReservedBytes);
}

}  // namespace verbena::wire
