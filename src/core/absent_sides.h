// An XRC queue pair has only one half. These classes take the place of the other one.
#pragma once

#include "core/qp_sides.h"

namespace verbena::core {

class NoSends final : public SendSide {
 public:
  explicit NoSends(QpCommon& qp) : qp_(qp) {}
  Status post(const SendRequest&) override {
    return Error{EINVAL, "an XRC receive QP sends nothing: post to an XRC send QP"};
  }
  void unpost(uint32_t) override {}
  uint32_t transmit(wire::PacketSink&, Instant, const TransmitTurn&) override { return 0; }
  Readiness readiness(Instant) override { return Readiness::No; }
  void on_cnp(Instant now) override { qp_.peer->on_cnp(now); }  // for its responses
  void start() override {}
  void change_peer(PeerPath* peer) override { qp_.peer = peer; }
  void reset() override {}
  void flush(WcStatus) override {}
  bool drained() const override { return true; }
  wire::Psn next_psn() const override { return wire::Psn(qp_.attr.sq_psn); }

 private:
  QpCommon& qp_;
};

class NoReceives final : public ReceiveSide {
 public:
  explicit NoReceives(QpCommon& qp) : qp_(qp) {}
  Status post(const ReceiveRequest&) override {
    return Error{EINVAL, "an XRC send QP receives nothing: post to the SRQ"};
  }
  void on_request(const wire::Packet&, const wire::RxMeta&) override {
    qp_.count(CounterId::wrong_transport);
  }
  void start() override {}
  void reset() override {}
  void flush() override {}
  wire::Psn expected_psn() const override { return wire::Psn(qp_.attr.rq_psn); }

 private:
  QpCommon& qp_;
};

}  // namespace verbena::core
