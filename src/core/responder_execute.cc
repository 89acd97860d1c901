// The execution of a peer's requests that have passed the checks of responder.cc. Each one still
// checks access rights. Clause numbers are those of IBA volume 1, chapter 9.
#include <algorithm>
#include <cstring>

#include "core/placement.h"
#include "core/responder.h"

namespace verbena::core {

using wire::Verb;

Responder::Verdict Responder::execute(const wire::Packet& p) {
  switch (p.op.verb) {
    case Verb::Send:
      return execute_send(p);
    case Verb::Write:
      return execute_write(p);
    case Verb::ReadRequest:
      return execute_read(p);
    case Verb::CompareSwap:
    case Verb::FetchAdd:
      return execute_atomic(p);
    case Verb::AtomicWrite:
      return execute_atomic_write(p);
    case Verb::Flush:
      return execute_flush(p);
    default:
      return Verdict::Invalid;
  }
}

Responder::Verdict Responder::execute_send(const wire::Packet& p) {
  if (!message_) {
    if (!receives_.consume()) return Verdict::NotReady;
    message_ = InboundMessage{.verb = Verb::Send, .reth = {}};
  }
  const auto bytes = static_cast<uint32_t>(p.payload.size());
  if (bytes > receives_.length() - message_->received) return Verdict::TooLong;
  if (!receives_.scatter(message_->received, p.payload, p.op.ends_message())) {
    return Verdict::DeniedLocally;
  }
  message_->received += bytes;
  if (!p.op.ends_message()) return Verdict::Proceed;
  if (p.op.has_invalidate && !qp_.engine.memory.invalidate(qp_.pd, qp_.qpn, p.invalidate_rkey)) {
    return Verdict::Denied;
  }
  const uint32_t total = message_->received;
  message_.reset();
  ++msn_;
  finish_receive(p, WcOpcode::Receive, total);
  return Verdict::Proceed;
}

Responder::Verdict Responder::execute_write(const wire::Packet& p) {
  if ((qp_.attr.access & kRemoteWrite) == 0) return Verdict::Denied;
  MemoryView& memory = qp_.engine.memory;
  if (!message_) {
    // The whole range is checked before the first byte is written (C9-88: not for zero length). For
    // a message of one packet, resolve() below does that.
    if (p.reth.length != p.payload.size() &&
        !memory.grants(p.reth.rkey, qp_.pd, qp_.qpn, p.reth.address, p.reth.length, kRemoteWrite)) {
      return Verdict::Denied;
    }
    message_ = InboundMessage{.verb = Verb::Write, .reth = p.reth};
  }
  if (!p.payload.empty()) {
    // Resolved for each packet: the region may have been deregistered since the first.
    const MemoryArea to =
        memory.resolve(message_->reth.rkey, qp_.pd, qp_.qpn,
                       message_->reth.address + message_->received, p.payload.size(), kRemoteWrite);
    if (to == nullptr) return Verdict::Denied;
    place(to, p.payload, p.op.ends_message());
    message_->received += static_cast<uint32_t>(p.payload.size());
  }
  if (!p.op.ends_message()) return Verdict::Proceed;
  // Another engine may have taken the last shared receive meanwhile.
  if (p.op.has_immediate && !receives_.consume()) {
    if (p.op.starts_message()) {
      message_.reset();
    } else {
      message_->received -= static_cast<uint32_t>(p.payload.size());
    }
    return Verdict::NotReady;
  }
  const uint32_t total = message_->received;
  message_.reset();
  ++msn_;
  if (p.op.has_immediate) finish_receive(p, WcOpcode::ReceiveWriteImm, total);
  return Verdict::Proceed;
}

// The number of packets in the middle of the present message that its length allows, and that one
// lookup of memory covers.
size_t Responder::packets_in_message(Verb verb, uint32_t packet_bytes) const {
  const uint32_t received = message_->received;
  uint32_t bytes = 0;
  if (verb == Verb::Write) {
    bytes = message_->reth.length - received - 1;  // the last packet has at least one byte
  } else if (verb == Verb::Send) {
    bytes = std::min(receives_.length(), kMaxMessageBytes) - received;
  }
  return std::min(bytes, wire::kMaxPayloadBytes) / packet_bytes;
}

// False, and nothing is written, if the keys do not grant the access to all of it.
bool Responder::place_run(const wire::PacketRun& run) {
  if (message_->verb == Verb::Send) return receives_.scatter(message_->received, run);
  if ((qp_.attr.access & kRemoteWrite) == 0) return false;
  const wire::Reth& reth = message_->reth;
  const MemoryArea to =
      qp_.engine.memory.resolve(reth.rkey, qp_.pd, qp_.qpn, reth.address + message_->received,
                                run.size() * run.payload_bytes(), kRemoteWrite);
  if (to == nullptr) return false;
  PayloadReader from(run);
  place(to, from, static_cast<uint32_t>(run.size() * run.payload_bytes()));
  return true;
}

void Responder::finish_receive(const wire::Packet& p, WcOpcode opcode, uint32_t byte_count) {
  receives_.complete([&](Completion& c) {
    c.opcode = opcode;
    c.byte_count = byte_count;
    c.solicited = p.bth.solicited;
    c.source_qpn = qp_.attr.dest_qpn;
    if (p.op.has_immediate) {
      c.flags = kWcWithImmediate;
      c.immediate_or_rkey = p.immediate;
    } else if (p.op.has_invalidate) {
      c.flags = kWcWithInvalidate;
      c.immediate_or_rkey = p.invalidate_rkey;
    }
  });
}

Responder::Verdict Responder::execute_read(const wire::Packet& p) {
  if (p.reth.length > kMaxMessageBytes) return Verdict::Invalid;
  if ((qp_.attr.access & kRemoteRead) == 0) return Verdict::Denied;
  if (p.reth.length != 0 && !qp_.engine.memory.grants(p.reth.rkey, qp_.pd, qp_.qpn, p.reth.address,
                                                      p.reth.length, kRemoteRead)) {
    return Verdict::Denied;
  }
  Resource* r = resources_.take(p.op.verb, expected_, qp_.pd);
  if (r == nullptr) return Verdict::Invalid;
  r->reth = p.reth;
  r->packet_payload_bytes = qp_.packet_payload_bytes_of(p);
  r->packets = read_response_packets(p.reth.length, r->packet_payload_bytes);
  r->msn = ++msn_;
  resources_.start_response(*r, 0, r->packets, false);
  return Verdict::Proceed;
}

Responder::Verdict Responder::execute_atomic(const wire::Packet& p) {
  if (p.atomic.address % 8 != 0) return Verdict::Invalid;  // C9-100: naturally aligned
  if ((qp_.attr.access & kRemoteAtomic) == 0) return Verdict::Denied;
  const MemoryArea at =
      qp_.engine.memory.resolve(p.atomic.rkey, qp_.pd, qp_.qpn, p.atomic.address, 8, kRemoteAtomic);
  if (at == nullptr) return Verdict::Denied;
  // Behind an aligned iova the buffer may be misaligned, where the CPU's access is not atomic.
  if (reinterpret_cast<uintptr_t>(at.at) % 8 != 0) return Verdict::Invalid;
  Resource* r = resources_.take(p.op.verb, expected_, qp_.pd);
  if (r == nullptr) return Verdict::Invalid;

  r->original = p.op.verb == Verb::FetchAdd
                    ? fetch_add(at, p.atomic.swap_or_add)
                    : compare_swap(at, p.atomic.compare, p.atomic.swap_or_add);
  r->packets = 1;
  r->msn = ++msn_;
  resources_.start_response(*r, 0, 1, false);
  return Verdict::Proceed;
}

Responder::Verdict Responder::execute_atomic_write(const wire::Packet& p) {
  if (p.reth.address % 8 != 0) return Verdict::Invalid;
  if ((qp_.attr.access & kRemoteWrite) == 0) return Verdict::Denied;
  const MemoryArea at =
      qp_.engine.memory.resolve(p.reth.rkey, qp_.pd, qp_.qpn, p.reth.address, 8, kRemoteWrite);
  if (at == nullptr) return Verdict::Denied;
  if (reinterpret_cast<uintptr_t>(at.at) % 8 != 0)
    return Verdict::Invalid;  // as for the other atomics
  Resource* r = resources_.take(p.op.verb, expected_, qp_.pd);
  if (r == nullptr) return Verdict::Invalid;
  uint64_t value;
  std::memcpy(&value, p.payload.data(), 8);
  store(at, value);
  respond_empty(*r);
  return Verdict::Proceed;
}

// Requests are executed in order, so the data of all earlier WRITEs is in memory already.
Responder::Verdict Responder::execute_flush(const wire::Packet& p) {
  if (p.flush.placement == 0 || (p.flush.placement & ~wire::kPlaceAny) != 0 ||
      p.flush.selectivity > wire::kSelectRegion) {
    return Verdict::Invalid;
  }
  const uint32_t access =
      ((p.flush.placement & wire::kPlaceGlobal) != 0 ? kFlushGlobal : 0) |
      ((p.flush.placement & wire::kPlacePersistent) != 0 ? kFlushPersistent : 0);
  if ((qp_.attr.access & access) != access) return Verdict::Denied;
  // Soft-RoCE does not limit these to max_rd_atomic. It retransmits one that is dropped for lack of
  // a resource.
  if (resources_.empty()) return Verdict::Invalid;
  if (!resources_.has_free()) return Verdict::Drop;
  switch (qp_.engine.memory.flush(p.reth.rkey, qp_.pd, qp_.qpn, p.reth.address, p.reth.length,
                                  p.flush.selectivity == wire::kSelectRegion, access)) {
    case MemoryView::FlushResult::Denied:
      return Verdict::Denied;
    case MemoryView::FlushResult::Failed:
      return Verdict::Failed;
    case MemoryView::FlushResult::Done:
      break;
  }
  respond_empty(*resources_.take(p.op.verb, expected_, qp_.pd));
  return Verdict::Proceed;
}

// The response is that of a READ of zero bytes; address and length stay 0.
void Responder::respond_empty(Resource& r) {
  r.packets = 1;
  r.msn = ++msn_;
  resources_.start_response(r, 0, 1, false);
}

}  // namespace verbena::core
