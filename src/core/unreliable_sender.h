// The sending sides of UC and UD. There are no ACKs, so a request completes when its last packet is
// in the sink, and UnackedPace limits the rate. A request that fails stops only the send queue
// (state SQE); the receiving side continues.
#pragma once

#include <cstdint>
#include <memory>

#include "base/time.h"
#include "core/congestion/dcqcn.h"
#include "core/qp_sides.h"
#include "core/work_queue.h"

namespace verbena::core {

class UnreliableSender : public SendSide {
 public:
  UnreliableSender(QpCommon& qp, uint32_t max_wr, uint32_t max_sges, uint32_t max_inline);

  Status post(const SendRequest& request) override;
  void unpost(uint32_t count) override;
  uint32_t transmit(wire::PacketSink& sink, Instant now, const TransmitTurn& turn) override;
  Readiness readiness(Instant now) override {
    return ready(now) ? Readiness::Ready : Readiness::No;
  }
  Instant deadline() const override { return waits_ ? not_before_ : kNever; }
  void on_cnp(Instant now) override;
  void start() override;
  void change_peer(PeerPath* peer) override { qp_.peer = peer; }
  void reset() override;
  void flush(WcStatus first) override;
  bool drained() const override { return next_packet_ == 0; }
  wire::Psn next_psn() const override { return next_; }

 protected:
  // Checks the transport's requirements of a request.
  virtual Status admit(const SendRequest& request, uint32_t length) const = 0;
  // Stores the destination of the request in `wqe`.
  virtual void address(const SendRequest&, SendWqe&) const {}
  // Called for each request that leaves the queue, sent or not.
  virtual void on_removed(const SendWqe&) const {}
  virtual uint32_t packet_limit() const = 0;  // payload bytes
  // Fills opcode, destination and headers of one packet. Returns its path.
  virtual wire::PathId fill(const SendWqe& wqe, bool first, bool last, wire::Packet& p) const = 0;

  QpCommon& qp_;

 private:
  bool may_send() const;
  bool ready(Instant now);
  void reserve(Instant now);
  void reserve_at_cnp_rate(Instant now);
  void cancel_reservation();
  void send_packet(wire::PacketSink& sink);
  void finish_head(WcStatus status);
  void fail_head(WcStatus status);

  SendQueue queue_;
  uint32_t next_packet_ = 0;  // of the request at the head
  wire::Psn next_{0};
  bool started_ = false;
  // Pace: this many bytes of the queued packets may leave, not before `not_before_`.
  uint32_t reserved_ = 0;
  Instant not_before_{};
  bool waits_ = false;  // for not_before_
  // The rate after a CNP; null: none was received. UC has one: a UD packet names no queue pair that
  // a CNP could go to.
  struct CnpLimit {
    DcqcnRate rate;
    Instant free_at{};  // when what was reserved before has left at this rate
  };
  std::unique_ptr<CnpLimit> cnp_limit_;
};

class UcSender final : public UnreliableSender {
 public:
  using UnreliableSender::UnreliableSender;

 private:
  Status admit(const SendRequest& request, uint32_t length) const override;
  uint32_t packet_limit() const override { return qp_.packet_payload_bytes(); }
  wire::PathId fill(const SendWqe& wqe, bool first, bool last, wire::Packet& p) const override;
};

class UdSender final : public UnreliableSender {
 public:
  using UnreliableSender::UnreliableSender;

 private:
  Status admit(const SendRequest& request, uint32_t length) const override;
  void address(const SendRequest& request, SendWqe& wqe) const override;
  void on_removed(const SendWqe& wqe) const override;
  uint32_t packet_limit() const override {
    return kMaxMessageBytes;
  }  // admit() has checked the MTU
  wire::PathId fill(const SendWqe& wqe, bool first, bool last, wire::Packet& p) const override;
};

}  // namespace verbena::core
