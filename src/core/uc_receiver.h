// The receiving side of UC: completes SENDs and WRITEs whose packets are all received. A missing
// packet drops its message, without a response.
#pragma once

#include <cstdint>
#include <optional>

#include "core/qp_sides.h"
#include "core/receive_source.h"

namespace verbena::core {

class UcReceiver final : public ReceiveSide {
 public:
  UcReceiver(QpCommon& qp, uint32_t max_wr, uint32_t max_sges)
      : qp_(qp), receives_(qp, max_wr, max_sges) {}

  Status post(const ReceiveRequest& request) override { return receives_.post(request); }
  void on_request(const wire::Packet& packet, const wire::RxMeta& meta) override;
  void start() override;
  void reset() override;
  void flush() override;
  wire::Psn expected_psn() const override { return expected_; }

 private:
  struct InboundMessage {
    wire::Verb verb;
    uint32_t received = 0;
    wire::Reth reth;  // WRITE
  };

  void drop_message(CounterId why);
  bool length_fits(const wire::Packet& packet) const;
  void execute_send(const wire::Packet& packet);
  void execute_write(const wire::Packet& packet);
  bool ensure_receive();
  void complete_receive(const wire::Packet& packet, WcOpcode opcode);
  void fail_receive(const wire::Packet& packet);

  QpCommon& qp_;
  ReceiveSource receives_;
  wire::Psn expected_{0};
  std::optional<InboundMessage> message_;  // the message in progress, without a gap so far
};

}  // namespace verbena::core
