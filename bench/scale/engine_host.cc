// A host's turns.
#include "bench/scale/engine_host.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "ns3/inet-socket-address.h"
#include "ns3/node.h"
#include "ns3/packet.h"
#include "ns3/simulator.h"
#include "ns3/udp-socket-factory.h"

namespace verbena::scale {
namespace {

constexpr uint32_t kProtectionDomain = 1;
constexpr uint32_t kCompletions = 1024;
constexpr size_t kLargestPacket = wire::kMaxHeaderBytes + 4096 + 4;
// The network of ns-3 damages no packet. The field is there, so that packets have their size.
constexpr size_t kIcrcBytes = 4;

// As on a machine that runs for a while.
constexpr Instant kBegin{1'000'000'000'000};

Instant now() { return kBegin + nanoseconds(ns3::Simulator::Now().GetNanoSeconds()); }

wire::PathId path_to(ns3::Ipv4Address address) { return wire::PathId{address.Get()}; }

}  // namespace

// Lends the engine the room of the send buffer.
class EngineHost::Sink final : public wire::PacketSink {
 public:
  explicit Sink(EngineHost& host) : host_(host), room_(host.room()) {}
  size_t room() const override { return room_; }
  void push(const wire::TxPacket& packet) override {
    --room_;
    host_.send(packet);
  }

 private:
  EngineHost& host_;
  size_t room_;
};

ns3::TypeId EngineHost::GetTypeId() {
  static const ns3::TypeId id = ns3::TypeId("verbena::EngineHost").SetParent<ns3::Application>();
  return id;
}

wire::Gid EngineHost::gid_of(ns3::Ipv4Address address) {
  std::byte bytes[4];
  store_be32(bytes, address.Get());
  return wire::Gid::from_ipv4(bytes);
}

void EngineHost::open(const Shape& shape, SharedBuffers& buffers, OnCompletion on_completion) {
  shape_ = shape;
  gid_ = gid_of(shape.address);
  on_completion_ = std::move(on_completion);
  core::EngineConfig config;
  config.secret = shape.seed;
  config.congestion = shape.congestion;
  engine_ = std::make_unique<core::Engine>(config);
  cq_ = std::make_unique<core::CompletionQueue>(kCompletions);
  const auto add = [&](std::byte* base, uint32_t access) {
    return engine_->memory()
        .add_region({.pd = kProtectionDomain,
                     .base = base,
                     .length = SharedBuffers::kBytes,
                     .iova = reinterpret_cast<uintptr_t>(base),
                     .access = access})
        .value();
  };
  source_iova_ = reinterpret_cast<uintptr_t>(buffers.source());
  target_iova_ = reinterpret_cast<uintptr_t>(buffers.target());
  source_lkey_ = add(buffers.source(), 0);
  target_rkey_ = add(buffers.target(), core::kLocalWrite | core::kRemoteWrite);

  socket_ = ns3::Socket::CreateSocket(GetNode(), ns3::UdpSocketFactory::GetTypeId());
  VERBENA_CHECK(socket_->Bind(ns3::InetSocketAddress(shape.address, kPort)) == 0);
  socket_->SetIpRecvTos(true);
  socket_->SetRecvCallback(ns3::MakeCallback(&EngineHost::on_readable, this));
  shape.queue->TraceConnectWithoutContext("Dequeue",
                                          ns3::MakeCallback(&EngineHost::on_dequeue, this));
}

template <typename Call>
auto EngineHost::timed(Call call) {
  const auto begin = std::chrono::steady_clock::now();
  struct Adder {
    EngineHost& host;
    std::chrono::steady_clock::time_point begin;
    ~Adder() { host.engine_time_ += std::chrono::steady_clock::now() - begin; }
  } const adder{*this, begin};
  return call();
}

// --- verbs ---------------------------------------------------------------------------------------

core::QueuePair& EngineHost::create_qp(uint32_t max_send, uint32_t max_receive) {
  core::QpConfig config;
  config.pd = kProtectionDomain;
  config.send_cq = config.receive_cq = cq_.get();
  config.max_send_wr = max_send;
  config.max_recv_wr = max_receive;
  config.max_send_sge = config.max_recv_sge = 1;
  return *engine_->create_qp(config).value();
}

void EngineHost::connect(core::QueuePair& qp, const EngineHost& peer,
                         const core::QueuePair& peer_qp, const sim::ConnectionShape& shape) {
  sim::ConnectionEnd end;
  end.source = gid_;
  end.destination = peer.gid_;
  end.path = path_to(peer.shape_.address);
  end.peer = peer_qp.qpn();
  for (const sim::Transition& t : sim::transitions_to_rts(qp.type(), end, shape)) {
    VERBENA_CHECK(qp.check_modify(t.attr, t.mask).ok());
    engine_->modify_qp(qp, t.attr, t.mask, now());
  }
}

void EngineHost::destroy(core::QueuePair& qp) {
  engine_->destroy_qp(&qp, now());
  turn();
}

void EngineHost::post_receive(core::QueuePair& qp) {
  core::ReceiveRequest request;
  request.wr_id = qp.qpn().value();
  VERBENA_CHECK(engine_->post_receive(qp, request, now()).ok());
}

uint32_t EngineHost::writes_for(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + SharedBuffers::kBytes - 1) / SharedBuffers::kBytes);
}

void EngineHost::write(core::QueuePair& qp, const EngineHost& peer, uint64_t bytes) {
  while (bytes != 0) {
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(bytes, SharedBuffers::kBytes));
    bytes -= part;
    const core::Sge sge{source_iova_, part, source_lkey_};
    core::SendRequest request;
    request.wr_id = qp.qpn().value();
    request.op = bytes == 0 ? core::SendOp::WriteImm : core::SendOp::Write;
    request.flags = bytes == 0 ? core::kSignaled : 0;
    request.sges = {&sge, 1};
    request.remote_address = peer.target_iova_;
    request.rkey = peer.target_rkey_;
    VERBENA_CHECK(engine_->post_send(qp, request, now()).ok());
  }
  turn();
}

// --- packets and time ----------------------------------------------------------------------------

void EngineHost::on_readable(ns3::Ptr<ns3::Socket> socket) {
  ns3::Address from;
  while (const ns3::Ptr<ns3::Packet> packet = socket->RecvFrom(from)) {
    on_packet(*packet, ns3::InetSocketAddress::ConvertFrom(from).GetIpv4());
  }
  turn();
}

void EngineHost::on_packet(const ns3::Packet& packet, ns3::Ipv4Address source) {
  std::array<std::byte, kLargestPacket> bytes;
  const uint32_t size = packet.GetSize();
  VERBENA_CHECK(size >= kIcrcBytes && size <= bytes.size());
  packet.CopyData(reinterpret_cast<uint8_t*>(bytes.data()), size);
  ns3::SocketIpTosTag tos;
  wire::RxMeta meta;
  meta.source = gid_of(source);
  meta.destination = gid_;
  meta.hop_limit = 64;
  if (packet.PeekPacketTag(tos)) meta.traffic_class = tos.GetTos();
  const wire::RxPacket received{.bytes = std::span(bytes).first(size - kIcrcBytes), .meta = &meta};
  timed([&] { engine_->on_packets({&received, 1}, now()); });
}

void EngineHost::send(const wire::TxPacket& packet) {
  const auto begin = std::chrono::steady_clock::now();
  std::array<std::byte, kLargestPacket> bytes;
  std::memcpy(bytes.data(), packet.header.data(), packet.header_bytes);
  size_t size = packet.header_bytes;
  for (const std::span<const std::byte> segment : packet.payload) {
    std::memcpy(bytes.data() + size, segment.data(), segment.size());
    size += segment.size();
  }
  const size_t padding = packet.pad + kIcrcBytes;
  std::memset(bytes.data() + size, 0, padding);
  const auto whole = ns3::Create<ns3::Packet>(reinterpret_cast<const uint8_t*>(bytes.data()),
                                              static_cast<uint32_t>(size + padding));
  ns3::InetSocketAddress to(ns3::Ipv4Address(static_cast<uint32_t>(packet.path)), kPort);
  if (packet.ecn_capable && core::is_ecn_capable(*shape_.congestion)) to.SetTos(wire::kEct0);
  socket_->SendTo(whole, 0, to);
  engine_time_ -= std::chrono::steady_clock::now() - begin;  // this is the work of ns-3
}

size_t EngineHost::room() const {
  const uint32_t queued = shape_.queue->GetNBytes();
  return queued >= kSendBufferBytes ? 0 : (kSendBufferBytes - queued) / kLargestPacket;
}

void EngineHost::on_dequeue(ns3::Ptr<const ns3::QueueDiscItem>) {
  if (!is_blocked_ || shape_.queue->GetNBytes() > kSendBufferBytes / 2) return;
  is_blocked_ = false;
  ns3::Simulator::ScheduleNow(&EngineHost::turn, this);
}

void EngineHost::turn() {
  if (std::exchange(in_turn_, true)) return;
  timed([&] { engine_->on_deadline(now()); });
  bool left = true;
  while (left && !is_blocked_) {
    Sink sink(*this);
    is_blocked_ = sink.room() == 0;
    if (!is_blocked_) left = timed([&] { return engine_->poll_transmit(sink, now()); });
  }
  core::EngineState& state = engine_->state();
  state.events.clear();
  state.failures.clear();
  state.notified.clear();
  in_turn_ = false;
  take_completions();
  arm();
}

void EngineHost::take_completions() {
  core::Completion completion;
  while (cq_->poll(&completion, 1) == 1) on_completion_(completion);
}

void EngineHost::arm() {
  const Instant next = engine_->earliest_deadline();
  if (next == kNever || (next >= armed_ && deadline_.IsRunning())) return;
  deadline_.Cancel();
  armed_ = next;
  const int64_t wait = std::max<int64_t>((next - now()).ns, 0);
  deadline_ = ns3::Simulator::Schedule(ns3::NanoSeconds(wait), &EngineHost::turn, this);
}

}  // namespace verbena::scale
