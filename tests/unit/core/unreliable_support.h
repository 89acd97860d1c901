// A connected UC queue pair, and a UD queue pair with an address handle.
#pragma once

#include "tests/unit/core/engine_support.h"

namespace verbena::core {

inline constexpr uint32_t kMtu = 256;

inline uint8_t uc(wire::Opcode rc) { return wire::with_base(wire::kUcBase, rc); }

class UcFixture : public EngineTest {
 public:
  UcFixture() { connect({.type = QpType::Uc}); }

  void receive_uc(wire::Opcode rc, uint32_t psn, std::span<const std::byte> payload,
                  uint32_t write_length = 0) {
    wire::Packet p = request(rc, psn);
    p.bth.opcode = uc(rc);
    p.bth.ack_request = false;
    p.reth.length = write_length;
    p.immediate = 0x11223344;
    receive(p, payload);
  }
  // A SEND of three packets, less packet number `without`.
  void receive_uc_send(uint32_t psn, const Bytes& message, int without = -1) {
    const std::span<const std::byte> all = message;
    if (without != 0) receive_uc(wire::Opcode::RcSendFirst, psn, all.first(kMtu));
    if (without != 1) receive_uc(wire::Opcode::RcSendMiddle, psn + 1, all.subspan(kMtu, kMtu));
    if (without != 2) receive_uc(wire::Opcode::RcSendLast, psn + 2, all.subspan(2 * kMtu));
  }
  bool memory_is(uint64_t offset, std::span<const std::byte> expected) const {
    return std::equal(expected.begin(), expected.end(), memory_.begin() + offset);
  }
};

inline constexpr uint32_t kOurQkey = 0x11111111;

inline wire::Gid ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  const uint8_t bytes[4] = {a, b, c, d};
  return wire::Gid::from_ipv4(bytes);
}

class UdFixture : public EngineTest {
 public:
  UdFixture() {
    qp_ = &make_ud();
    handle_.pd = kPd;
    handle_.address.destination = peer_gid_;
    handle_.path = wire::PathId{3};
    handle_.mtu = wire::Mtu::k256;
  }

  QueuePair& make_ud(QpState state = QpState::Rts, SharedReceiveQueue* srq = nullptr) {
    using namespace qp_attr;
    QpConfig c;
    c.type = QpType::Ud;
    c.pd = kPd;
    c.send_cq = c.receive_cq = &cq_;
    c.max_send_wr = c.max_recv_wr = 512;
    c.max_send_sge = c.max_recv_sge = 4;
    c.max_inline = 64;
    c.srq = srq;
    QueuePair& qp = *engine_.create_qp(c).value();
    QpAttributes attr;
    attr.state = QpState::Init;
    attr.port = 1;
    attr.qkey = kOurQkey;
    EXPECT_TRUE(qp.check_modify(attr, kState | kPkeyIndex | kPort | kQkey).ok());
    engine_.modify_qp(qp, attr, kState | kPkeyIndex | kPort | kQkey, now_);
    to_state(qp, QpState::Rtr);
    attr.state = state;
    attr.sq_psn = 100;
    engine_.modify_qp(qp, attr, kState | kSqPsn, now_);
    return qp;
  }

  SendRequest datagram(uint64_t wr_id, std::span<const Sge> sges) const {
    SendRequest r;
    r.wr_id = wr_id;
    r.flags = kSignaled;
    r.sges = sges;
    r.datagram.handle = &handle_;
    r.datagram.qpn = wire::Qpn(0x020007);
    r.datagram.qkey = 0x22222222;
    return r;
  }
  Status send(uint64_t wr_id, uint32_t length, uint32_t flags = kSignaled) {
    const Sge sge{kIova, length, key_};
    SendRequest r = datagram(wr_id, {&sge, 1});
    r.flags = flags;
    return engine_.post_send(*qp_, r, now_);
  }
  wire::Packet incoming(wire::Opcode opcode = wire::Opcode::UdSendOnly) const {
    wire::Packet p = request(opcode, 77);
    p.bth.ack_request = false;
    p.deth = {kOurQkey, wire::Qpn(0x030009)};
    p.immediate = 5;
    return p;
  }

  AddressHandle handle_;
};

}  // namespace verbena::core
