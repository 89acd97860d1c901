// The responder's checks and executions. Clause numbers are those of IBA volume 1, chapter 9.
#include "core/responder.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/placement.h"
#include "wire/local_peer.h"

namespace verbena::core {

using wire::NakCode;
using wire::Position;
using wire::Verb;

Responder::Responder(QpCommon& qp, uint32_t max_wr, uint32_t max_sges)
    : qp_(qp), receives_(qp, max_wr, max_sges), reorder_buffer_(qp.engine.packet_pool) {}

void Responder::start() {
  expected_ = wire::Psn(qp_.attr.rq_psn);
  msn_ = 0;
  message_.reset();
  nak_sent_ = false;
  reorder_buffer_.clear();
  drop_responses();
  std::ranges::fill(resources_, Resource{});
  next_resource_ = 0;
}

void Responder::resize_resources(uint32_t count) {
  std::vector<Resource> kept;
  kept.reserve(std::max<size_t>(resources_.size(), count));
  for (size_t age = resources_.size(); age >= 1; --age) {  // oldest first
    const Resource& r = resources_[(next_resource_ + resources_.size() - age) % resources_.size()];
    if (r.used) kept.push_back(r);
  }
  if (kept.size() > count) kept.erase(kept.begin(), kept.end() - static_cast<ptrdiff_t>(count));
  pending_resources_ = static_cast<uint32_t>(
      std::ranges::count_if(kept, [](const Resource& r) { return r.pending; }));
  next_resource_ = count == 0 ? 0 : kept.size() % count;
  kept.resize(count);
  resources_ = std::move(kept);
}

void Responder::reset() {
  receives_.reset();
  message_.reset();
  nak_sent_ = false;
  reorder_buffer_.clear();
  drop_responses();
  resources_.clear();
}

void Responder::drop_responses() {
  for (Resource& r : resources_) r.pending = false;
  pending_resources_ = 0;
  qp_.acks.reset();
}

void Responder::flush() {
  message_.reset();
  reorder_buffer_.clear();
  receives_.flush();
}

// The number of packets of a READ response.
uint32_t Responder::packets_for(const wire::Packet& read) const {
  return read.reth.length == 0 ? 1 : (read.reth.length - 1) / qp_.packet_payload_bytes_of(read) + 1;
}

void Responder::on_request(const wire::Packet& p, const wire::RxMeta&) {
  // The peer reads SACK lists, which report more than the plain NAK that was sent.
  if (qp_.extensions.on_request(p.bth)) [[unlikely]]
    nak_sent_ = false;
  const int32_t ahead = p.bth.psn.distance_from(expected_);
  if (ahead < 0) return on_duplicate(p);
  if (ahead > 0) return on_ahead(p);
  run(p);
  if (!reorder_buffer_.empty()) [[unlikely]]
    run_buffered();
}

// A request is missing that was sent before one that was received.
bool Responder::has_gap() const {
  return !reorder_buffer_.empty() && sent_to_.distance_from(expected_) > 0;
}

// The gap is filled: executes buffered requests up to the next gap, which is reported to the peer.
void Responder::run_buffered() {
  while (!reorder_buffer_.empty() && !qp_.failure) {
    const int32_t ahead = reorder_buffer_.psn(0).distance_from(expected_);
    if (ahead > 0) {
      if (has_gap()) {
        qp_.acks.on_ack_due();
      } else {
        sent_to_ = expected_;
      }
      return;
    }
    auto next = reorder_buffer_.take_first();  // before it runs: run() may clear the buffer
    if (ahead == 0) run(next->packet);
    reorder_buffer_.release(std::move(next));
  }
}

// Executes the request with the expected PSN.
void Responder::run(const wire::Packet& p) {
  if (p.op.has_xrc_eth && !choose_srq(p)) {
    return refuse(Verdict::Invalid, p);
  }

  Verdict verdict = check_order(p);
  if (verdict == Verdict::Proceed) verdict = check_length(p);
  if (verdict == Verdict::Proceed) verdict = check_receive(p);
  if (verdict == Verdict::Proceed) verdict = execute(p);
  apply(verdict, p);
}

// XRC: the request names the shared receive queue, whose protection domain applies to all memory
// that the request accesses. The queue must belong to the queue pair's XRC domain and be the same
// for all packets of a message.
bool Responder::choose_srq(const wire::Packet& p) {
  const auto found = qp_.engine.srqs.find(p.xrc_srqn);
  if (found == qp_.engine.srqs.end()) return false;
  SharedReceiveQueue* srq = found->second.get();
  if (srq->config().xrc_domain != qp_.xrc_domain) return false;
  if (message_ && srq != receives_.chosen()) return false;
  receives_.choose(srq);
  qp_.pd = srq->config().pd;
  return true;
}

void Responder::on_ahead(const wire::Packet& p) {
  if (reorder_buffer_.empty()) sent_to_ = expected_;
  if (qp_.extensions.is_reordered(p.bth)) {  // a packet without the flag reveals a loss
    if (!nak_sent_ && reorder_buffer_.put(expected_, p)) qp_.count(CounterId::requests_reordered);
    return;
  }
  qp_.count(CounterId::out_of_sequence);
  if (nak_sent_) return;  // C9-114: one NAK per expected PSN
  if (p.bth.psn.distance_from(sent_to_) >= 0) sent_to_ = p.bth.psn + 1;
  if (qp_.extensions.peer_reads_sack() && reorder_buffer_.put(expected_, p)) {
    qp_.count(CounterId::requests_buffered);
  }
  if (!reorder_buffer_.empty()) return qp_.acks.on_ack_due();
  nak_sent_ = true;
  qp_.acks.on_refused({wire::AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), msn_});
  qp_.count(CounterId::naks_sequence_sent);
}

// The packet's position in its message (C9-81 and following).
Responder::Verdict Responder::check_order(const wire::Packet& p) const {
  if (message_.has_value() == p.op.starts_message()) return Verdict::Invalid;
  if (message_ && message_->verb != p.op.verb) return Verdict::Invalid;
  return Verdict::Proceed;
}

Responder::Verdict Responder::check_length(const wire::Packet& p) const {
  const uint32_t mtu = qp_.packet_payload_bytes_of(p);
  const size_t bytes = p.payload.size();
  switch (p.op.position) {
    case Position::First:
    case Position::Middle:
      if (bytes != mtu) return Verdict::Invalid;
      break;
    case Position::Last:
      if (bytes == 0 || bytes > mtu) return Verdict::Invalid;
      break;
    case Position::Only:
      if (bytes > mtu) return Verdict::Invalid;
      break;
  }
  const bool has_payload = p.op.verb == Verb::Send || p.op.verb == Verb::Write;
  if (p.op.verb == Verb::AtomicWrite)
    return bytes == 8 && p.reth.length == 8 ? Verdict::Proceed : Verdict::Invalid;
  if (!has_payload && bytes != 0) return Verdict::Invalid;
  const uint32_t before = message_ ? message_->received : 0;
  if (has_payload && before + bytes > kMaxMessageBytes) return Verdict::Invalid;
  if (p.op.verb == Verb::Write) {
    const uint32_t total = message_ ? message_->reth.length : p.reth.length;
    if (total > kMaxMessageBytes || before + bytes > total) return Verdict::Invalid;
    if (p.op.ends_message() != (before + bytes == total)) return Verdict::Invalid;
  }
  return Verdict::Proceed;
}

Responder::Verdict Responder::check_receive(const wire::Packet& p) const {
  const bool consumes_receive = (p.op.verb == Verb::Send && p.op.starts_message()) ||
                                (p.op.verb == Verb::Write && p.op.has_immediate);
  if (consumes_receive && receives_.empty()) return Verdict::NotReady;
  return Verdict::Proceed;
}

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
    message_ = InboundMessage{.verb = Verb::Send, .reth = {}};
    receives_.consume();
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
  MemoryRegistry& memory = qp_.engine.memory;
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
    std::byte* to =
        memory.resolve(message_->reth.rkey, qp_.pd, qp_.qpn,
                       message_->reth.address + message_->received, p.payload.size(), kRemoteWrite);
    if (to == nullptr) return Verdict::Denied;
    if (p.op.ends_message()) {
      place_last_word_last(to, p.payload);
    } else {
      std::memcpy(to, p.payload.data(), p.payload.size());
    }
    message_->received += static_cast<uint32_t>(p.payload.size());
  }
  if (!p.op.ends_message()) return Verdict::Proceed;
  const uint32_t total = message_->received;
  message_.reset();
  ++msn_;
  if (p.op.has_immediate) {
    receives_.consume();
    finish_receive(p, WcOpcode::ReceiveWriteImm, total);
  }
  return Verdict::Proceed;
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

// False while the peer has max_dest_rd_atomic requests outstanding. A pending replay does not
// count: the peer has sent a new request, so it has received the first response.
bool Responder::has_free_resource() const {
  return !resources_.empty() &&
         (!resources_[next_resource_].pending || resources_[next_resource_].is_replay);
}

Responder::Resource* Responder::take_resource(Verb verb) {
  if (!has_free_resource()) return nullptr;
  Resource& r = resources_[next_resource_];
  if (r.pending) --pending_resources_;
  next_resource_ = (next_resource_ + 1) % resources_.size();
  r = Resource{};
  r.used = true;
  r.verb = verb;
  r.first = expected_;
  r.pd = qp_.pd;
  return &r;
}

void Responder::start_response(Resource& r, uint32_t from, uint32_t packets, bool is_replay) {
  uint32_t end = from + packets;
  if (r.pending) {  // another part of it was requested: sends both
    from = std::min(from, r.next_packet);
    end = std::max(end, r.end_packet);
  } else {
    ++pending_resources_;
  }
  r.pending = true;
  r.is_replay = is_replay;
  r.first_packet = r.next_packet = from;
  r.end_packet = end;
}

// The response is that of a READ of zero bytes; address and length stay 0.
void Responder::respond_empty(Resource& r) {
  r.packets = 1;
  r.msn = ++msn_;
  start_response(r, 0, 1, false);
}

Responder::Verdict Responder::execute_read(const wire::Packet& p) {
  if (p.reth.length > kMaxMessageBytes) return Verdict::Invalid;
  if ((qp_.attr.access & kRemoteRead) == 0) return Verdict::Denied;
  if (p.reth.length != 0 && !qp_.engine.memory.grants(p.reth.rkey, qp_.pd, qp_.qpn, p.reth.address,
                                                      p.reth.length, kRemoteRead)) {
    return Verdict::Denied;
  }
  Resource* r = take_resource(p.op.verb);
  if (r == nullptr) return Verdict::Invalid;
  r->reth = p.reth;
  r->packet_payload_bytes = qp_.packet_payload_bytes_of(p);
  r->packets = packets_for(p);
  r->msn = ++msn_;
  start_response(*r, 0, r->packets, false);
  return Verdict::Proceed;
}

Responder::Verdict Responder::execute_atomic(const wire::Packet& p) {
  if (p.atomic.address % 8 != 0) return Verdict::Invalid;  // C9-100: naturally aligned
  if ((qp_.attr.access & kRemoteAtomic) == 0) return Verdict::Denied;
  std::byte* at =
      qp_.engine.memory.resolve(p.atomic.rkey, qp_.pd, qp_.qpn, p.atomic.address, 8, kRemoteAtomic);
  if (at == nullptr) return Verdict::Denied;
  // Behind an aligned iova the buffer may be misaligned, where the CPU's access is not atomic.
  if (reinterpret_cast<uintptr_t>(at) % 8 != 0) return Verdict::Invalid;
  Resource* r = take_resource(p.op.verb);
  if (r == nullptr) return Verdict::Invalid;

  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(at));
  if (p.op.verb == Verb::FetchAdd) {
    r->original = word.fetch_add(p.atomic.swap_or_add);
  } else {
    uint64_t expected = p.atomic.compare;
    word.compare_exchange_strong(expected, p.atomic.swap_or_add);
    r->original = expected;
  }
  r->packets = 1;
  r->msn = ++msn_;
  start_response(*r, 0, 1, false);
  return Verdict::Proceed;
}

Responder::Verdict Responder::execute_atomic_write(const wire::Packet& p) {
  if (p.reth.address % 8 != 0) return Verdict::Invalid;
  if ((qp_.attr.access & kRemoteWrite) == 0) return Verdict::Denied;
  std::byte* at =
      qp_.engine.memory.resolve(p.reth.rkey, qp_.pd, qp_.qpn, p.reth.address, 8, kRemoteWrite);
  if (at == nullptr) return Verdict::Denied;
  if (reinterpret_cast<uintptr_t>(at) % 8 != 0)
    return Verdict::Invalid;  // as for the other atomics
  Resource* r = take_resource(p.op.verb);
  if (r == nullptr) return Verdict::Invalid;
  uint64_t value;
  std::memcpy(&value, p.payload.data(), 8);
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at)).store(value);
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
  if (!has_free_resource()) return Verdict::Drop;
  switch (qp_.engine.memory.flush(p.reth.rkey, qp_.pd, qp_.qpn, p.reth.address, p.reth.length,
                                  p.flush.selectivity == wire::kSelectRegion, access)) {
    case MemoryRegistry::FlushResult::Denied:
      return Verdict::Denied;
    case MemoryRegistry::FlushResult::Failed:
      return Verdict::Failed;
    case MemoryRegistry::FlushResult::Done:
      break;
  }
  respond_empty(*take_resource(p.op.verb));
  return Verdict::Proceed;
}

void Responder::apply(Verdict verdict, const wire::Packet& p) {
  switch (verdict) {
    case Verdict::Proceed: {
      const uint32_t packets = p.op.verb == Verb::ReadRequest ? packets_for(p) : 1;
      expected_ = expected_ + packets;
      nak_sent_ = false;
      qp_.acks.on_executed();
      const bool has_response = p.op.verb != Verb::Send && p.op.verb != Verb::Write;
      if (p.bth.ack_request && !has_response) qp_.acks.on_ack_due();
      return;
    }
    case Verdict::Drop:
      return;
    case Verdict::NotReady:
      qp_.acks.on_refused({wire::AckKind::RnrNak, qp_.attr.min_rnr_timer, msn_});
      nak_sent_ = true;         // later requests are dropped without a NAK until the retry
      reorder_buffer_.clear();  // the peer retransmits these
      qp_.count(CounterId::rnr_naks_sent);
      return;
    default:
      return refuse(verdict, p);
  }
}

Responder::Refusal Responder::refusal_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::TooLong:  // C9-95
      return {NakCode::InvalidRequest, WcStatus::LocalLength};
    case Verdict::Denied:
      return {NakCode::RemoteAccess, WcStatus::RemoteAccess};
    case Verdict::DeniedLocally:
      return {NakCode::RemoteOperational, WcStatus::LocalProtection};
    case Verdict::Failed:
      return {NakCode::RemoteOperational, WcStatus::RemoteOperation};
    default:
      return {NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest};
  }
}

// A request that must not be executed: sends a NAK, fails the receive in use and the queue pair.
void Responder::refuse(Verdict verdict, const wire::Packet& p) {
  const Refusal refusal = refusal_of(verdict);
  qp_.acks.on_refused({wire::AckKind::Nak, static_cast<uint8_t>(refusal.code), msn_});
  nak_sent_ = true;
  EventKind event = EventKind::QpRequestError;
  switch (refusal.code) {
    case NakCode::RemoteAccess:
      qp_.count(CounterId::naks_remote_access_sent);
      event = EventKind::QpAccessError;
      break;
    case NakCode::RemoteOperational:
      qp_.count(CounterId::naks_remote_operation_sent);
      event = EventKind::QpFatal;
      break;
    default:
      qp_.count(CounterId::naks_invalid_request_sent);
      break;
  }
  if (receives_.has_receive()) {
    receives_.complete([&](Completion& c) {
      c.status = refusal.receive_status;
      c.opcode = WcOpcode::Receive;
    });
  }
  message_.reset();
  if (qp_.failure) return;  // the queue pair has failed already
  qp_.engine.raise({.kind = event, .qp = qp_.self});
  QpFailure& f = qp_.fail(refusal.receive_status);
  f.as_responder = true;
  f.packet_opcode = p.bth.opcode;
  f.psn = p.bth.psn.value();
  if (p.op.has_atomic_eth) {
    f.remote_address = p.atomic.address;
    f.rkey = p.atomic.rkey;
  } else if (p.op.has_reth) {
    f.remote_address = p.reth.address;
    f.rkey = p.reth.rkey;
    f.length = p.reth.length;
  }
}

// C9-105 and following: a duplicate is not executed again, but its response is replayed.
void Responder::on_duplicate(const wire::Packet& p) {
  qp_.count(CounterId::duplicate_requests);
  if (p.op.verb == Verb::Send || p.op.verb == Verb::Write) {
    qp_.acks.on_ack_due();
    qp_.extensions.announce_again();  // that ACK may have been lost
    return;
  }
  // Newest first: PSNs wrap around, so an old resource may match as well.
  for (size_t age = 1; age <= resources_.size(); ++age) {
    Resource& r = resources_[(next_resource_ + resources_.size() - age) % resources_.size()];
    if (!r.used || r.verb != p.op.verb) continue;
    const int32_t from = p.bth.psn.distance_from(r.first);
    if (from < 0 || from >= static_cast<int32_t>(r.packets)) continue;
    if (r.verb != Verb::ReadRequest) {
      start_response(r, 0, 1, true);  // with the result of the first execution
      return;
    }
    // A duplicate READ may start later than the original, at the first lost packet.
    const uint64_t skipped = uint64_t{static_cast<uint32_t>(from)} * r.packet_payload_bytes;
    // A response of one packet does not depend on the packet payload size. The request may have
    // come through shared memory and, after the link ended, its duplicate over the wire.
    const bool same_size = qp_.packet_payload_bytes_of(p) == r.packet_payload_bytes ||
                           (r.packets == 1 && packets_for(p) == 1);
    const bool within = same_size && p.reth.rkey == r.reth.rkey &&
                        p.reth.address == r.reth.address + skipped &&
                        p.reth.length <= r.reth.length - skipped;
    // All packets except the original's last are full, so a shorter duplicate must end with a full
    // packet.
    const bool whole = p.reth.length == r.reth.length - skipped ||
                       (p.reth.length != 0 && p.reth.length % r.packet_payload_bytes == 0);
    if (!within || !whole) continue;
    start_response(r, static_cast<uint32_t>(from), packets_for(p), true);
    return;
  }
  qp_.count(CounterId::duplicate_dropped);
}

// Responses leave in PSN order: an ACK that overtook a READ response would report it as lost.
Responder::Resource* Responder::next_pending() {
  Resource* best = nullptr;
  for (Resource& r : resources_) {
    if (r.pending && (best == nullptr || r.first.distance_from(best->first) < 0)) best = &r;
  }
  return best;
}

uint32_t Responder::send_responses(wire::PacketSink& sink, uint32_t budget, bool defer_last) {
  uint32_t sent = 0;
  while (pending_resources_ != 0 && sent < budget && sink.room() > 0) {
    Resource& r = *next_pending();
    if (r.is_atomic()) {
      send_atomic_ack(r, sink);
      ++sent;
      continue;
    }
    while (r.pending && sent < budget && sink.room() > 0) {
      const bool has_middle = r.end_packet - r.first_packet > 2;
      const bool last = r.next_packet + 1 == r.end_packet;
      if (defer_last && has_middle && last && sent > 0) return sent;
      if (!send_read_packet(r, sink)) return sent;
      ++sent;
    }
  }
  return sent;
}

uint32_t Responder::send_ack(wire::PacketSink& sink, AckPlace place) {
  if (pending_resources_ != 0 || sink.room() == 0 || !qp_.acks.is_due()) return 0;
  if (qp_.acks.nak()) {
    send_nak(sink, *qp_.acks.nak(), place);
  } else if (has_gap()) {
    send_sack(sink, place);
  } else {
    send_plain_ack(sink, place);
  }
  qp_.acks.on_sent();
  return 1;
}

// The first response announces the capability, which a piggybacked ACK cannot.
wire::OptionalPsn Responder::ack_to_piggyback() const {
  const bool plain = qp_.acks.is_plain() && pending_resources_ == 0 && !has_gap();
  return plain && qp_.extensions.announced() ? wire::OptionalPsn(expected_ - 1) : std::nullopt;
}

bool Responder::send_read_packet(Resource& r, wire::PacketSink& sink) {
  const uint32_t offset = r.next_packet * r.packet_payload_bytes;
  const uint32_t bytes = std::min(r.packet_payload_bytes, r.reth.length - offset);
  std::span<const std::byte> payload;
  if (bytes != 0) {
    const std::byte* from = qp_.engine.memory.resolve(r.reth.rkey, r.pd, qp_.qpn,
                                                      r.reth.address + offset, bytes, kRemoteRead);
    if (from == nullptr && r.is_replay) {  // the peer may have the data already
      qp_.count(CounterId::duplicate_dropped);
      r.pending = false;
      --pending_resources_;
      return true;
    }
    if (from == nullptr) {  // deregistered during the response
      wire::Packet request;
      request.bth.opcode = qp_.opcode(wire::Opcode::RcReadRequest);
      request.op = wire::info_of(request.bth.opcode);
      request.bth.psn = r.first;
      request.reth = r.reth;
      expected_ = r.first + r.next_packet;
      drop_responses();
      refuse(Verdict::Denied, request);
      return false;
    }
    payload = {from, bytes};
  }
  const bool first = r.next_packet == r.first_packet;
  const bool last = r.next_packet + 1 == r.end_packet;
  using enum wire::Opcode;
  wire::Packet p;
  p.bth.opcode = qp_.opcode(first ? (last ? RcReadResponseOnly : RcReadResponseFirst)
                                  : (last ? RcReadResponseLast : RcReadResponseMiddle));
  p.bth.psn = r.first + r.next_packet;
  p.bth.extension_flags = qp_.extensions.response_flag(r.is_replay);
  p.aeth.msn = r.msn;
  p.in_window = qp_.extensions.peer_reads_sack() && !r.is_replay;
  push_packet(qp_, sink, p, {&payload, payload.empty() ? 0u : 1u}, bytes);
  ++r.next_packet;
  if (last) {
    r.pending = false;
    --pending_resources_;
  }
  return true;
}

void Responder::send_atomic_ack(Resource& r, wire::PacketSink& sink) {
  wire::Packet p;
  p.bth.opcode = qp_.opcode(wire::Opcode::RcAtomicAck);
  p.bth.psn = r.first;
  p.aeth.msn = r.msn;
  p.original = r.original;
  push_packet(qp_, sink, p, {}, 0);
  r.pending = false;
  --pending_resources_;
}

wire::Packet Responder::ack_packet(wire::Psn psn, const wire::Aeth& aeth, uint8_t flag,
                                   AckPlace place) const {
  wire::Packet p;
  p.bth.opcode = qp_.opcode(wire::Opcode::RcAck);
  p.bth.psn = psn;
  p.bth.extension_flags = flag;
  p.aeth = aeth;
  p.ends_batch = place != AckPlace::First;
  return p;
}

void Responder::send_plain_ack(wire::PacketSink& sink, AckPlace place) {
  const bool may_be_short = qp_.extensions.announced() && qp_.type == QpType::Rc;
  wire::LocalPeer* const local = sink.local_peer();
  if (may_be_short && local != nullptr &&
      local->send_short_ack(qp_.attr.path, {qp_.attr.dest_qpn, expected_ - 1})) {
    return qp_.count(CounterId::packets_sent);
  }
  wire::Packet p = ack_packet(expected_ - 1, {wire::AckKind::Ack, wire::kUnlimitedCredits, msn_},
                              qp_.extensions.response_flag(false), place);
  push_packet(qp_, sink, p, {}, 0);
}

void Responder::send_nak(wire::PacketSink& sink, const wire::Aeth& nak, AckPlace place) {
  const bool reports_loss =
      nak.kind == wire::AckKind::Nak && nak.value == static_cast<uint8_t>(NakCode::SequenceError);
  const uint8_t flag =
      reports_loss ? qp_.extensions.sack_flag() : qp_.extensions.response_flag(false);
  wire::Packet p = ack_packet(expected_, nak, flag, place);
  push_packet(qp_, sink, p, {}, 0);
}

// A sequence NAK that lists the requests buffered behind the gap.
void Responder::send_sack(wire::PacketSink& sink, AckPlace place) {
  const SackList list(reorder_buffer_, expected_);
  const std::span<const std::byte> payload = list.bytes();
  wire::Packet p = ack_packet(
      expected_, {wire::AckKind::Nak, static_cast<uint8_t>(NakCode::SequenceError), msn_},
      qp_.extensions.sack_flag(), place);
  push_packet(qp_, sink, p, {&payload, 1}, static_cast<uint32_t>(payload.size()));
  qp_.count(CounterId::naks_sequence_sent);
}

}  // namespace verbena::core
