// Packets that a test sends in the peer's name.
#include "tests/unit/core/engine_support.h"

#include <algorithm>

#include "core/requester.h"

namespace verbena::core {

using wire::AckKind;
using wire::Opcode;

void RecordingSink::push(const wire::TxPacket& packet) {
  ASSERT_GT(room_, 0u);
  --room_;
  Sent s;
  s.bytes.assign(packet.header.begin(), packet.header.begin() + packet.header_bytes);
  for (const auto& segment : packet.payload)
    s.bytes.insert(s.bytes.end(), segment.begin(), segment.end());
  s.bytes.resize(s.bytes.size() + packet.pad);
  s.in_window = packet.in_window;
  s.last = packet.last;
  s.ecn_capable = packet.ecn_capable;
  wire::ParseError why{};
  sent.push_back(std::move(s));
  const auto parsed = wire::Packet::parse(sent.back().bytes, &why);
  ASSERT_TRUE(parsed.has_value()) << "the engine sent something that is not a packet";
  sent.back().packet = *parsed;
}

EngineTest::EngineTest(bool selective_repeat, bool fast_path, const CongestionAlgorithm& congestion)
    : engine_({.slot = 1,
               .secret = 42,
               .max_qps = 64,
               .extensions = selective_repeat,
               .fast_path = fast_path,
               .congestion = &congestion}) {
  const uint8_t ours[4] = {10, 0, 0, 1}, theirs[4] = {10, 0, 0, 2};
  our_gid_ = wire::Gid::from_ipv4(ours);
  peer_gid_ = wire::Gid::from_ipv4(theirs);
  key_ = engine_.memory()
             .add_region(kPd, memory_.data(), memory_.size(), kIova,
                         kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic | kWindowBind)
             .value();
}

void EngineTest::connect(const TestShape& shape) { qp_ = &make_connected(shape); }

QueuePair& EngineTest::make_connected(const TestShape& s) {
  using namespace qp_attr;
  QpConfig c;
  c.pd = kPd;
  c.send_cq = c.receive_cq = &cq_;
  c.max_send_wr = c.max_recv_wr = s.depth;
  c.max_send_sge = c.max_recv_sge = 4;
  c.max_inline = 64;
  c.srq = s.srq;
  c.type = s.type;
  c.xrc_domain = s.xrc_domain;
  if (s.type == QpType::XrcSend) c.receive_cq = nullptr;
  if (s.type == QpType::XrcReceive) c.send_cq = c.receive_cq = nullptr;
  QueuePair& qp = *engine_.create_qp(c).value();
  QpAttributes attr;
  attr.state = QpState::Init;
  attr.port = 1;
  attr.access = s.access;
  engine_.modify_qp(qp, attr, kState | kPkeyIndex | kPort | kAccessFlags, now_);
  attr.state = QpState::Rtr;
  attr.address.is_global = true;
  attr.address.destination = peer_gid_;
  attr.source_gid = our_gid_;
  attr.path_packet_bytes = s.path_packet_bytes;
  attr.path_mtu = s.mtu;
  attr.dest_qpn = kPeerQpn;
  attr.rq_psn = s.rq_psn;
  attr.max_dest_read_atomic = s.max_dest_read_atomic;
  attr.min_rnr_timer = s.min_rnr_timer;
  engine_.modify_qp(
      qp, attr,
      kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
      now_);
  if (s.state == QpState::Rtr) return qp;
  attr.state = QpState::Rts;
  attr.sq_psn = s.sq_psn;
  attr.timeout = s.timeout;
  attr.retry_count = s.retry_count;
  attr.rnr_retry = s.rnr_retry;
  attr.max_read_atomic = s.max_read_atomic;
  engine_.modify_qp(qp, attr, kState | kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic,
                    now_);
  return qp;
}

void EngineTest::to_state(QueuePair& qp, QpState state) {
  QpAttributes attr;
  attr.state = state;
  ASSERT_TRUE(qp.check_modify(attr, qp_attr::kState).ok());
  engine_.modify_qp(qp, attr, qp_attr::kState, now_);
}

Status EngineTest::post(SendOp op, uint64_t wr_id, uint32_t length, uint32_t flags,
                        uint64_t local_offset) {
  const Sge sge{kIova + local_offset, length, key_};
  SendRequest r;
  r.op = op;
  r.wr_id = wr_id;
  r.flags = flags;
  r.sges = {&sge, 1};
  r.remote_address = 0x7000;
  r.rkey = 0x1234;
  r.compare_add = 3;
  r.swap = 4;
  return engine_.post_send(*qp_, r, now_);
}

Status EngineTest::post_receive(uint64_t wr_id, uint32_t length, uint64_t offset) {
  const Sge sge{kIova + offset, length, key_};
  return engine_.post_receive(*qp_, {.wr_id = wr_id, .sges = {&sge, 1}}, now_);
}

std::vector<Sent> EngineTest::transmit(size_t room) {
  RecordingSink sink(room, path_full_);
  engine_.poll_transmit(sink, now_);
  return std::move(sink.sent);
}

std::vector<Opcode> EngineTest::transmit_opcodes() {
  std::vector<Opcode> out;
  for (const Sent& s : transmit()) out.push_back(s.opcode());
  return out;
}

wire::Packet EngineTest::request(Opcode opcode, uint32_t psn) const {
  wire::Packet p;
  p.bth.opcode = static_cast<uint8_t>(opcode);
  p.bth.destination = qp_->qpn();
  p.bth.psn = wire::Psn(psn);
  p.bth.ack_request = true;
  p.reth = {kIova, key_, 0};
  p.atomic.address = kIova;
  p.atomic.rkey = key_;
  return p;
}

void EngineTest::receive(const wire::Packet& packet, std::span<const std::byte> payload) {
  receive(packet, payload, {.source = peer_gid_, .destination = our_gid_});
}

void EngineTest::receive(const wire::Packet& packet, std::span<const std::byte> payload,
                         const wire::RxMeta& meta) {
  wire::Packet p = packet;
  p.bth.pad = static_cast<uint8_t>(-payload.size() & 3u);
  Bytes bytes(wire::kMaxHeaderBytes);
  bytes.resize(wire::store_headers(p, bytes.data()));
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  bytes.resize(bytes.size() + p.bth.pad);
  const wire::RxPacket rx{
      .bytes = bytes, .meta = &meta, .packet_payload_bytes = packet.packet_payload_bytes};
  engine_.on_packets({&rx, 1}, now_);
}

void EngineTest::receive_together(std::initializer_list<wire::Packet> packets) {
  const wire::RxMeta meta{.source = peer_gid_, .destination = our_gid_};
  std::vector<Bytes> stored;
  for (const wire::Packet& packet : packets) {
    Bytes& bytes = stored.emplace_back(wire::kMaxHeaderBytes);
    bytes.resize(wire::store_headers(packet, bytes.data()));
  }
  std::vector<wire::RxPacket> batch;
  for (const Bytes& bytes : stored) batch.push_back({bytes, &meta});
  engine_.on_packets(batch, now_);
}

void EngineTest::receive_ack(uint32_t psn) {
  receive_nak(psn, AckKind::Ack, wire::kUnlimitedCredits);
}

void EngineTest::receive_nak(uint32_t psn, AckKind kind, uint8_t value) {
  wire::Packet p = request(Opcode::RcAck, psn);
  p.aeth = {kind, value, 0};
  receive(p);
}

bool EngineTest::next_deadline() {
  const Instant at = engine_.next_deadline();
  if (at == kNever) return false;
  now_ = std::max(now_, at);
  engine_.on_deadline(now_);
  return true;
}

void EngineTest::time_out() {
  now_ = now_ + ack_timeout(TestShape{}.timeout);
  engine_.on_deadline(now_);
}

std::vector<Completion> EngineTest::poll() {
  std::vector<Completion> out(cq_.size());
  cq_.poll(out.data(), static_cast<uint32_t>(out.size()));
  return out;
}

std::vector<std::pair<uint64_t, WcStatus>> EngineTest::completions() {
  std::vector<std::pair<uint64_t, WcStatus>> out;
  for (const Completion& c : poll()) out.emplace_back(c.wr_id, c.status);
  return out;
}

std::vector<EventKind> EngineTest::events() {
  std::vector<EventKind> out;
  for (const AsyncEvent& e : engine_.state().events) out.push_back(e.kind);
  engine_.state().events.clear();
  return out;
}

Bytes pattern(size_t length, uint8_t seed) {
  Bytes b(length);
  for (size_t i = 0; i < length; ++i) b[i] = static_cast<std::byte>(i * 7 + seed + i / 256);
  return b;
}

}  // namespace verbena::core
