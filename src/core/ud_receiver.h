// The receiving side of UD: accepts datagrams from any sender with the right Q_Key. A receive
// begins with 40 bytes for the IP header of the datagram.
#pragma once

#include <cstdint>

#include "core/qp_sides.h"
#include "core/receive_source.h"

namespace verbena::core {

class UdReceiver final : public ReceiveSide {
 public:
  // In front of the payload in every receive: an IPv6 header, or 20 zero bytes and an IPv4 header.
  static constexpr uint32_t kHeaderBytes = 40;

  UdReceiver(QpCommon& qp, uint32_t max_wr, uint32_t max_sges)
      : qp_(qp), receives_(qp, max_wr, max_sges) {}

  Status post(const ReceiveRequest& request) override { return receives_.post(request); }
  void on_request(const wire::Packet& packet, const wire::RxMeta& meta) override;
  void start() override {}
  void reset() override { receives_.reset(); }
  void flush() override { receives_.flush(); }
  // Datagrams have no order.
  wire::Psn expected_psn() const override { return wire::Psn(qp_.attr.rq_psn); }

 private:
  bool place(const wire::Packet& packet, const wire::RxMeta& meta);

  QpCommon& qp_;
  ReceiveSource receives_;
};

}  // namespace verbena::core
