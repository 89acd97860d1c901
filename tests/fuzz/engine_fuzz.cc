// A hostile peer against an engine. The input is a list of commands for the peer and for the
// application on our side. Afterwards every byte around the registered memory must be unchanged,
// and the engine must become idle.
//
// Two modes, by the first byte. Even: each command is a packet built from the input, with the
// destination, addresses, keys and PSNs near the right ones, so that the deep checks are reached.
// Odd: raw bytes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "core/engine.h"
#include "wire/packet.h"

namespace {

using namespace verbena;
using core::SendOp;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  uint8_t u8() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  uint32_t u32() {
    return uint32_t{u8()} << 24 | uint32_t{u8()} << 16 | uint32_t{u8()} << 8 | u8();
  }
  std::vector<std::byte> bytes(size_t n) {
    n = std::min(n, left_);
    const auto* p = reinterpret_cast<const std::byte*>(data_);
    std::vector<std::byte> out(p, p + n);
    data_ += n;
    left_ -= n;
    return out;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Reads every byte of a packet, so that sanitizers check what the engine sends.
class ReadingSink : public wire::PacketSink {
 public:
  size_t room() const override { return room_; }
  void push(const wire::TxPacket& packet) override {
    VERBENA_CHECK(room_ > 0);
    --room_;
    size_t bytes = packet.header_bytes + packet.pad;
    for (const auto& segment : packet.payload) {
      for (const std::byte b : segment) sum_ += std::to_integer<unsigned>(b);
      bytes += segment.size();
    }
    VERBENA_CHECK(bytes % 4 == 0 && bytes <= 4096 + wire::kMaxHeaderBytes);
  }
  void refill(size_t room) { room_ = room; }
  unsigned sum_ = 0;

 private:
  size_t room_ = 0;
};

class Target {
 public:
  static constexpr uint64_t kIova = 0x100000;
  static constexpr size_t kGuard = 4096;
  static constexpr size_t kBytes = 8192;
  static constexpr uint32_t kOurQkey = 0x1234;

  explicit Target(uint8_t shape) {
    memory_.fill(std::byte{0xA7});
    const uint8_t ours[4] = {10, 0, 0, 1}, theirs[4] = {10, 0, 0, 2};
    meta_.destination = wire::Gid::from_ipv4(ours);
    meta_.source = wire::Gid::from_ipv4(theirs);
    using namespace core;
    key_ = engine_.memory()
               .add_region(1, memory_.data() + kGuard, kBytes, kIova,
                           kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic | kWindowBind)
               .value();
    window_ = engine_.memory().add_window(1, WindowType::Type2).value();
    connect(shape);
  }

  void connect(uint8_t shape) {
    using namespace core;
    using namespace core::qp_attr;
    static constexpr QpType kTypes[] = {QpType::Rc, QpType::Uc, QpType::Ud, QpType::Rc};
    QpConfig c;
    c.type = kTypes[shape >> 2 & 3];
    c.pd = 1;
    c.send_cq = c.receive_cq = &cq_;
    c.max_send_wr = c.max_recv_wr = 8;
    c.max_send_sge = c.max_recv_sge = 4;
    c.max_inline = 32;
    qp_ = engine_.create_qp(c).value();
    QpAttributes a;
    a.state = QpState::Init;
    a.port = 1;
    a.access = kRemoteWrite | kRemoteRead | kRemoteAtomic;
    a.qkey = kOurQkey;
    engine_.modify_qp(*qp_, a, kState | kPkeyIndex | kPort | kAccessFlags | kQkey, now_);
    base_ = c.type == QpType::Uc   ? wire::kUcBase
            : c.type == QpType::Ud ? wire::kUdBase
                                   : wire::kRcBase;
    a.state = QpState::Rtr;
    a.address.is_global = true;
    a.address.destination = meta_.source;
    a.source_gid = meta_.destination;
    a.path_mtu = (shape & 2) != 0 ? wire::Mtu::k256 : wire::Mtu::k1024;
    a.dest_qpn = wire::Qpn::of_slot(2, 9);
    a.rq_psn = 0xFFFFFE;
    a.max_dest_read_atomic = 2;
    engine_.modify_qp(
        *qp_, a,
        kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer,
        now_);
    a.state = QpState::Rts;
    a.sq_psn = 0xFFFFFE;
    a.timeout = 10;
    a.retry_count = 2;
    a.rnr_retry = 2;
    a.max_read_atomic = 2;
    engine_.modify_qp(*qp_, a, kState | kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic,
                      now_);
  }

  void receive(const std::vector<std::byte>& bytes) {
    const wire::RxPacket rx{bytes, &meta_};
    engine_.on_packets({&rx, 1}, now_);
  }

  void forge(Input& in) {
    wire::Packet p;
    const uint8_t opcode = in.u8();
    p.bth.opcode = static_cast<uint8_t>(base_ | (opcode & 0x1F));
    const uint8_t flags = in.u8();
    p.bth.ack_request = (flags & 1) != 0;
    p.bth.solicited = (flags & 2) != 0;
    p.bth.destination = qp_->qpn();
    const core::ExtensionFlags theirs = core::flags_sent_by(qp_->attributes().dest_qpn, qp_->qpn());
    const uint8_t marks[] = {
        0, 0, 0, theirs.sack_capable, theirs.sack, theirs.reordered, theirs.piggyback, 0x7F};
    p.bth.extension_flags = marks[opcode >> 5];
    p.deth = {(flags & 8) != 0 ? kOurQkey : in.u32(), wire::Qpn(in.u32())};
    const auto attr = qp_->query();
    const bool response = wire::info_of(p.bth.opcode).direction == wire::Direction::Response;
    const auto offset = static_cast<uint32_t>(static_cast<int8_t>(in.u8()) / 8);
    p.bth.psn = wire::Psn((response ? attr.sq_psn - 1 : attr.rq_psn) + offset);
    const auto key = [&] { return (flags & 4) != 0 ? (flags & 8) != 0 ? bound_ : in.u32() : key_; };
    const auto address = [&] {
      const uint32_t at = in.u32();
      return (flags & 16) != 0 ? uint64_t{at} << 32 | at
                               : kIova + at % (kBytes + 64) - ((flags & 32) != 0 ? 32 : 0);
    };
    p.reth = {address(), key(), (flags & 64) != 0 ? in.u32() : in.u8() * 4u};
    p.atomic = {p.reth.address, p.reth.rkey, in.u32(), in.u8()};
    p.aeth = {static_cast<wire::AckKind>(in.u8() & 3), static_cast<uint8_t>(in.u8() & 31), 0};
    p.invalidate_rkey = p.reth.rkey;
    static constexpr size_t kLengths[] = {0, 4, 8, 255, 256, 257, 1024, 1028};
    const size_t length = (flags & 128) != 0 ? in.u8() : kLengths[in.u8() % std::size(kLengths)];
    p.bth.pad = static_cast<uint8_t>(-length & 3u);
    std::vector<std::byte> bytes(wire::kMaxHeaderBytes);
    bytes.resize(wire::store_headers(p, bytes.data()));
    bytes.resize(bytes.size() + length + p.bth.pad, std::byte{opcode});
    receive(bytes);
  }

  void post_send(Input& in) {
    const uint8_t kind = in.u8();
    const core::Sge sge{kIova + in.u8() * 32u, (in.u8() * 16u),
                        (kind & 0x40) != 0 ? key_ ^ 1 : key_};
    core::SendRequest r;
    r.op = static_cast<SendOp>(kind % 10);
    r.flags = (kind & 0x10) != 0 ? core::kSignaled : core::kFence;
    core::Sge eight = sge;
    if (core::is_atomic(r.op)) eight.length = 8;
    r.sges = {&eight, 1};
    r.datagram.handle = &handle_;
    r.datagram.qkey = kOurQkey;
    r.immediate_or_rkey = bound_;
    r.window_rkey = bound_ != 0 ? bound_ : window_;
    const uint32_t next = (r.window_rkey & ~0xFFu) | ((r.window_rkey + 1) & 0xFF);
    r.bind = {key_, kIova + 64, 256, core::kRemoteWrite | core::kRemoteRead, next};
    if (engine_.post_send(*qp_, r, now_).ok() && r.op == SendOp::BindWindow) bound_ = next;
  }

  void post_receive(Input& in) {
    const core::Sge sge{kIova + in.u8() * 16u, in.u8() * 16u, key_};
    (void)engine_.post_receive(*qp_, {.wr_id = 1, .sges = {&sge, 1}}, now_).ok();
  }

  void advance_time(Input& in) {
    now_ = now_ + microseconds(int64_t{in.u8()} * 100);
    engine_.on_deadline(now_);
  }

  void transmit(size_t room) {
    sink_.refill(room);
    engine_.poll_transmit(sink_, now_);
    core::Completion c[16];
    while (cq_.poll(c, 16) != 0) {
    }
    engine_.state().events.clear();
    engine_.state().failures.clear();
    engine_.state().notified.clear();
  }

  void reconnect(uint8_t shape) {
    engine_.destroy_qp(qp_, now_);
    connect(shape);
  }

  void run_until_idle() {
    // All outstanding requests fail or are flushed within their retries.
    for (int i = 0; i < 10000; ++i) {
      transmit(1000);
      const Instant next = engine_.next_deadline();
      if (next == kNever) break;
      now_ = std::max(now_, next);
      engine_.on_deadline(now_);
    }
    VERBENA_CHECK(engine_.next_deadline() == kNever);
    engine_.destroy_qp(qp_, now_);
    const auto guard = [](std::byte b) { return b == std::byte{0xA7}; };
    VERBENA_CHECK(std::all_of(memory_.begin(), memory_.begin() + kGuard, guard));
    VERBENA_CHECK(std::all_of(memory_.begin() + kGuard + kBytes, memory_.end(), guard));
  }

 private:
  core::Engine engine_{{.slot = 1, .secret = 7, .max_qps = 16}};
  core::CompletionQueue cq_{64};
  alignas(64) std::array<std::byte, kGuard + kBytes + kGuard> memory_;
  wire::RxMeta meta_;
  core::AddressHandle handle_{.pd = 1, .address = {}, .source_gid = {}, .mtu = wire::Mtu::k1024};
  uint8_t base_ = 0;  // base of the transport's opcodes
  core::QueuePair* qp_ = nullptr;
  uint32_t key_ = 0;
  uint32_t window_ = 0;
  uint32_t bound_ = 0;
  Instant now_{1};
  ReadingSink sink_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  const uint8_t shape = in.u8();
  Target target(shape);
  while (!in.empty()) {
    const uint8_t command = in.u8();
    switch (command & 7) {
      case 0:
        target.post_send(in);
        break;
      case 1:
        target.post_receive(in);
        break;
      case 2:
        target.advance_time(in);
        break;
      case 3:
        target.transmit(command >> 3);
        break;
      case 4:
        if ((command & 0xF8) == 0xF8) target.reconnect(in.u8());
        break;
      default:
        if ((shape & 1) != 0) {
          target.receive(in.bytes(in.u8()));
        } else {
          target.forge(in);
        }
        break;
    }
  }
  target.run_until_idle();
  return 0;
}
