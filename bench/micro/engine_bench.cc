// Microbenchmark of the engine by itself: two engines exchange packets through memory, without
// clock, sockets or ICRC.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "core/engine.h"

namespace verbena::core {
namespace {

constexpr uint32_t kPd = 1;
constexpr uint64_t kIova = 0x10000;
constexpr uint32_t kMostMessages = 32;

// Copies packets, as a datapath must, and delivers them all at once.
class Wire : public wire::PacketSink {
 public:
  explicit Wire(const wire::Gid& gid) : meta_{.source = gid, .destination = gid} {}
  size_t room() const override { return kPackets - count_; }
  void push(const wire::TxPacket& packet) override {
    std::byte* const start = &bytes_[count_ * kStride];
    std::byte* to = start;
    std::memcpy(to, packet.header.data(), packet.header_bytes);
    to += packet.header_bytes;
    for (const auto& part : packet.payload) {
      std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
    to += packet.pad;
    packets_[count_++] = {{start, to}, &meta_};
  }
  bool deliver(Engine& to, Instant now) {
    if (count_ == 0) return false;
    to.on_packets({packets_.data(), count_}, now);
    count_ = 0;
    return true;
  }

 private:
  static constexpr size_t kPackets = 64;
  static constexpr size_t kStride = 4096 + wire::kMaxHeaderBytes + 64;
  wire::RxMeta meta_;
  size_t count_ = 0;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kPackets * kStride);
  std::vector<wire::RxPacket> packets_ = std::vector<wire::RxPacket>(kPackets);
};

// One end: an engine with a region and a queue pair.
struct End {
  End(uint8_t slot, size_t bytes) : engine({.slot = slot, .secret = slot}), memory(bytes) {
    key = engine.memory()
              .add_region(kPd, memory.data(), memory.size(), kIova, kLocalWrite | kRemoteWrite)
              .value();
    QpConfig config;
    config.pd = kPd;
    config.send_cq = config.receive_cq = &cq;
    config.max_send_wr = config.max_recv_wr = kMostMessages;
    config.max_send_sge = config.max_recv_sge = 1;
    qp = engine.create_qp(config).value();
  }

  void connect(const End& peer, const wire::Gid& gid, wire::Mtu mtu, Instant now) {
    using namespace qp_attr;
    QpAttributes attr;
    attr.state = QpState::Init;
    attr.port = 1;
    attr.access = kRemoteWrite;
    engine.modify_qp(*qp, attr, kState | kPkeyIndex | kPort | kAccessFlags, now);
    attr.state = QpState::Rtr;
    attr.address.is_global = true;
    attr.address.destination = gid;
    attr.source_gid = gid;
    attr.path_mtu = mtu;
    attr.dest_qpn = peer.qp->qpn();
    engine.modify_qp(
        *qp, attr,
        kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
        now);
    attr.state = QpState::Rts;
    attr.timeout = 14;
    attr.retry_count = 7;
    engine.modify_qp(*qp, attr, kState | kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic,
                     now);
  }

  Engine engine;
  std::vector<std::byte> memory;
  CompletionQueue cq{64};
  QueuePair* qp = nullptr;
  uint32_t key = 0;
};

// WRITEs that are posted together, from posting to completion: the requests and the ACKs are sent
// and received.
void write_turn(benchmark::State& state) {
  const auto size = static_cast<uint32_t>(state.range(0));
  const wire::Mtu mtu = state.range(1) == 1024 ? wire::Mtu::k1024 : wire::Mtu::k4096;
  const int64_t messages = state.range(2);
  const uint8_t address[4] = {10, 0, 0, 1};
  const wire::Gid gid = wire::Gid::from_ipv4(address);
  End a(1, size), b(2, size);
  Instant now{1000};
  a.connect(b, gid, mtu, now);
  b.connect(a, gid, mtu, now);
  Wire to_b(gid), to_a(gid);
  const Sge sge{kIova, size, a.key};
  SendRequest request;
  request.op = SendOp::Write;
  request.flags = kSignaled;
  request.sges = {&sge, 1};
  request.remote_address = kIova;
  request.rkey = b.key;
  for ([[maybe_unused]] auto _ : state) {
    for (int64_t i = 0; i < messages; ++i) {
      if (!a.engine.post_send(*a.qp, request, now).ok()) state.SkipWithError("post_send");
    }
    Completion done[kMostMessages];
    for (int64_t left = messages; (left -= a.cq.poll(done, kMostMessages)) > 0;) {
      now.ns += 1000;
      a.engine.poll_transmit(to_b, now);
      to_b.deliver(b.engine, now);
      b.engine.poll_transmit(to_a, now);
      if (!to_a.deliver(a.engine, now)) {
        state.SkipWithError("no progress");
        return;
      }
    }
    if (done[0].status != WcStatus::Success) state.SkipWithError("the WRITE failed");
  }
  state.SetItemsProcessed(state.iterations() * messages);
  state.SetBytesProcessed(state.iterations() * messages * size);
}
BENCHMARK(write_turn)
    ->ArgNames({"bytes", "mtu", "messages"})
    ->Args({64, 4096, 1})
    ->Args({64, 4096, 32})
    ->Args({65536, 4096, 1})
    ->Args({65536, 1024, 1});

}  // namespace
}  // namespace verbena::core
