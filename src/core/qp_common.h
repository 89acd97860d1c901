// The state that the two halves of a queue pair share, and the state that they share with the
// engine. The halves report a failure by setting `failure`; QueuePair acts on it after they return.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/exhaustion.h"
#include "base/packet_order.h"
#include "core/ack_scheduler.h"
#include "core/completion_counter.h"
#include "core/completion_queue.h"
#include "core/counters.h"
#include "core/events.h"
#include "core/memory_view.h"
#include "core/path_references.h"
#include "core/peer_extensions.h"
#include "core/peer_path.h"
#include "core/qp_attributes.h"
#include "core/qp_config.h"
#include "core/reorder_buffer.h"
#include "core/shared_receive_queue.h"
#include "core/types.h"
#include "core/unacked_pace.h"
#include "wire/packet.h"
#include "wire/packet_run.h"

namespace verbena::core {

// The parts of the engine that queue pairs use. The engine's owner reads the lists after each turn.
struct EngineState {
  EngineState(MemoryRegistry& registry, uint64_t secret, bool with_extensions)
      : memory(registry), prng(secret ^ 0x5EED), extensions(with_extensions) {}
  MemoryView memory;
  wire::Exposure* exposure = nullptr;  // null: queue pairs are not exposed
  Counters counters;
  Prng prng;
  std::vector<AsyncEvent> events;
  std::vector<QpFailure> failures;
  std::vector<CompletionQueue*> notified;  // armed, and have a new completion
  bool overrun = false;         // a completion queue lost a completion: its queue pairs are to fail
  bool shared_overrun = false;  // so are those of other engines: the owner reports it to them
  uint64_t completions = 0;     // ever
  std::unordered_map<uint32_t, std::unique_ptr<SharedReceiveQueue>> srqs;  // by number
  Instant now;                                                             // of the present turn
  UnackedPace pace;        // of all UD and UC queue pairs
  PathReferences paths;    // of address handles
  PacketPool packet_pool;  // of all RC and XRC queue pairs
  const bool extensions;   // between two Verbenas: core/ext

  // Neither throws. Engine::reserve_lists reserves memory for each queue pair; an event beyond that
  // is lost if memory is exhausted. A completion queue then stays armed.
  [[gnu::cold, gnu::noinline]] void raise(const AsyncEvent& event) {
    if (!try_append(events, event)) counters.add(CounterId::out_of_memory);
  }
  [[gnu::noinline]] bool notify(CompletionQueue* cq) {
    if (try_append(notified, cq)) return true;
    cq->arm(Armed::Any);
    counters.add(CounterId::out_of_memory);
    return false;
  }

  bool has_reports() const {
    return !notified.empty() || !events.empty() || !failures.empty() || !paths.idle().empty() ||
           shared_overrun;
  }
};

struct QpCommon {
  EngineState& engine;
  QueuePair* self;
  wire::Qpn qpn;
  uint8_t opcode_base;  // the transport's first opcode
  QpState state = QpState::Reset;
  bool has_unwindowed_packet = false;  // a packet to send that may exceed the window
  uint32_t pd;  // the config's; XRC receive: the domain of the current request's SRQ
  PeerPath* peer = nullptr;
  QpConfig config;
  QpAttributes attr;
  AckScheduler acks{};
  PeerExtensions extensions{engine.extensions};
  std::optional<QpFailure> failure;
  const OperationCounters* counters = nullptr;  // null: not counted

  uint8_t opcode(wire::Opcode rc) const { return wire::with_base(opcode_base, rc); }
  // The packet payload size of a message that begins now. A rate limit needs small packets.
  uint32_t packet_payload_bytes() const {
    return attr.path_packet_bytes != 0 && attr.rate_limit == 0 ? attr.path_packet_bytes
                                                               : wire::bytes_of(attr.path_mtu);
  }
  // The packet payload size of the peer's message that `request` belongs to.
  uint32_t packet_payload_bytes_of(const wire::Packet& request) const {
    return request.packet_payload_bytes != 0 ? request.packet_payload_bytes
                                             : wire::bytes_of(attr.path_mtu);
  }
  bool shares_receives() const { return config.srq != nullptr || config.xrc_domain != 0; }

  void count(CounterId id, uint64_t n = 1) { engine.counters.add(id, n); }

  // Records why this queue pair goes into error; only the first reason counts.
  QpFailure& fail(WcStatus status) {
    if (!failure) {
      failure.emplace();
      failure->qpn = qpn;
      failure->peer_qpn = attr.dest_qpn;
      failure->peer = attr.address.destination;
      failure->status = status;
    }
    return *failure;
  }

  // A completion was lost, so the application does not learn the outcome of a work request.
  [[gnu::cold, gnu::noinline]] void fail_by_overrun() {
    if (failure || state == QpState::Error) return;
    engine.raise({.kind = EventKind::QpFatal, .qp = self});
    fail(WcStatus::Fatal);
  }

  // fill(completion) sets the fields that differ from the default, except time and local QPN.
  template <typename Fill>
  void complete(CompletionQueue* cq, Fill fill) {
    ++engine.completions;
    const CompletionQueue::Producing producing(*cq);
    const bool was_overrun = cq->overrun();
    Completion* const c = cq->next();
    if (c == nullptr) [[unlikely]]
      return lose_completion(cq, was_overrun);
    *c = Completion{};
    c->qpn = qpn;
    c->time = engine.now;
    fill(*c);
    if (cq->publish()) [[unlikely]]
      engine.notify(cq);
    // It lost a completion before this queue pair left RESET, or just now in another engine.
    if (was_overrun) [[unlikely]]
      fail_by_overrun();
  }
  [[gnu::cold, gnu::noinline]] void lose_completion(CompletionQueue* cq, bool was_overrun) {
    count(CounterId::cq_overruns);
    if (!was_overrun && cq->overrun()) {
      engine.raise({.kind = EventKind::CqError, .cq = cq});
      engine.overrun = true;
      engine.shared_overrun |= cq->is_shared();
    }
    if (cq->overrun()) fail_by_overrun();
  }
};

// The header of a packet and how it leaves, without its payload.
inline void fill_tx_packet(wire::TxPacket& tx, wire::PathId path, wire::Packet& packet,
                           uint32_t payload_bytes) {
  tx.packet_payload_bytes = packet.packet_payload_bytes;
  tx.in_window = packet.in_window;
  tx.last = packet.last;
  tx.ends_batch = packet.ends_batch;
  tx.ecn_capable = packet.ecn_capable;
  tx.path = path;
  tx.pad = static_cast<uint8_t>(-payload_bytes & 3u);
  tx.payload_bytes = payload_bytes;
  packet.bth.pad = tx.pad;
  tx.header_bytes = static_cast<uint8_t>(wire::store_headers(packet, tx.header.data()));
}

// Builds and pushes one packet, with padding. Requests set packet_payload_bytes.
inline void push_packet(QpCommon& qp, wire::PacketSink& sink, wire::PathId path,
                        wire::Packet& packet, std::span<const std::span<const std::byte>> payload,
                        uint32_t payload_bytes) {
  wire::TxPacket tx;
  fill_tx_packet(tx, path, packet, payload_bytes);
  tx.payload = payload;
  if (packet.piggyback) [[unlikely]] {
    store_be32(&tx.header[tx.header_bytes], (*packet.piggyback).value());
    tx.header_bytes += kPiggybackBytes;
  }
  qp.count(CounterId::packets_sent);
  sink.push(tx);
  order_sent_packet(packet.bth.destination.slot());
}

// The same, to the connected peer.
inline void push_packet(QpCommon& qp, wire::PacketSink& sink, wire::Packet& packet,
                        std::span<const std::span<const std::byte>> payload,
                        uint32_t payload_bytes) {
  packet.bth.destination = qp.attr.dest_qpn;
  push_packet(qp, sink, qp.attr.path, packet, payload, payload_bytes);
}

// Builds and pushes a run to the connected peer. `first` is its first packet; the payload is a
// multiple of `payload_bytes`, which is a multiple of four.
inline void push_run(QpCommon& qp, wire::PacketSink& sink, wire::Packet& first,
                     std::span<const std::byte> payload, uint32_t payload_bytes,
                     uint64_t ack_requests) {
  wire::TxPacket tx;
  first.bth.destination = qp.attr.dest_qpn;
  fill_tx_packet(tx, qp.attr.path, first, payload_bytes);
  const auto count = static_cast<uint32_t>(payload.size() / payload_bytes);
  qp.count(CounterId::packets_sent, count);
  sink.push_run({.first = tx, .payload = payload, .count = count, .ack_requests = ack_requests});
  order_sent_packet(qp.attr.dest_qpn.slot());
}

}  // namespace verbena::core
