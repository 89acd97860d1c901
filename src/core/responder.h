// Responder: executes a peer's requests in PSN order, exactly once, in registered memory only, and
// responds. Each request runs through one straight line of checks that ends in a Verdict.
// responder.cc checks, responder_execute.cc executes, responder_send.cc sends the responses.
#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"
#include "core/qp_sides.h"
#include "core/receive_source.h"
#include "core/reorder_buffer.h"
#include "core/responder_resources.h"

namespace verbena::core {

class Responder final : public ReceiveSide {
 public:
  Responder(QpCommon& qp, uint32_t max_wr, uint32_t max_sges);

  Status post(const ReceiveRequest& request) override { return receives_.post(request); }
  void on_request(const wire::Packet& packet, const wire::RxMeta& meta) override;
  size_t on_request_run(const wire::PacketRun& run) override;
  // The fast path (fast_path.cc). `payload`: without a piggybacked ACK. `to`: where the payload of
  // a WRITE goes.
  bool prepare_fast_receive(const wire::Packet& packet, std::span<const std::byte> payload,
                            MemoryArea& to);
  void commit_fast_receive(const wire::Packet& packet, std::span<const std::byte> payload,
                           MemoryArea to);
  uint32_t send_responses(wire::PacketSink& sink, uint32_t budget, bool defer_last) override;
  uint32_t send_ack(wire::PacketSink& sink, AckPlace place) override;
  wire::OptionalPsn ack_to_piggyback() const override;
  bool ready() const override { return resources_.has_pending() || qp_.acks.is_due(); }
  void start() override;
  void resize_resources(uint32_t count) override { resources_.resize(count); }
  void reset() override;
  void flush() override;
  void forget_srq(const SharedReceiveQueue* srq) override { receives_.forget(srq); }
  void drop_responses() override;
  wire::Psn expected_psn() const override { return expected_; }

 private:
  enum class Verdict : uint8_t {
    Proceed,
    Drop,
    NotReady,  // no receive is posted
    // Refusals (refusal_of):
    Invalid,
    TooLong,
    Denied,
    DeniedLocally,
    Failed
  };
  // The NAK, and the status of the receive in use.
  struct Refusal {
    wire::NakCode code;
    WcStatus receive_status;
  };
  static Refusal refusal_of(Verdict verdict);

  struct InboundMessage {
    wire::Verb verb;
    uint32_t received = 0;
    wire::Reth reth;  // WRITE
  };

  using Resource = ResponderResources::Resource;

  // --- responder.cc -----------------------------------------------------------------------------
  void run(const wire::Packet& packet);
  void run_buffered();
  bool has_gap() const;
  void on_duplicate(const wire::Packet& packet);
  void on_ahead(const wire::Packet& packet);
  bool choose_srq(const wire::Packet& packet);
  Verdict check_order(const wire::Packet& packet) const;
  Verdict check_length(const wire::Packet& packet) const;
  Verdict check_receive(const wire::Packet& packet) const;
  void apply(Verdict verdict, const wire::Packet& packet);
  void refuse(Verdict verdict, const wire::Packet& packet);

  // --- responder_execute.cc ---------------------------------------------------------------------
  Verdict execute(const wire::Packet& packet);
  Verdict execute_send(const wire::Packet& packet);
  Verdict execute_write(const wire::Packet& packet);
  size_t packets_in_message(wire::Verb verb, uint32_t packet_bytes) const;
  bool place_run(const wire::PacketRun& run);
  Verdict execute_read(const wire::Packet& packet);
  Verdict execute_atomic(const wire::Packet& packet);
  Verdict execute_atomic_write(const wire::Packet& packet);
  Verdict execute_flush(const wire::Packet& packet);
  void finish_receive(const wire::Packet& packet, WcOpcode opcode, uint32_t byte_count);
  void respond_empty(Resource& resource);

  // --- responder_send.cc ------------------------------------------------------------------------
  uint32_t send_read_run(Resource& resource, wire::PacketSink& sink, uint32_t budget);
  wire::Packet read_packet(const Resource& resource, wire::Opcode opcode);
  bool send_read_packet(Resource& resource, wire::PacketSink& sink);
  void send_atomic_ack(Resource& resource, wire::PacketSink& sink);
  wire::Packet ack_packet(wire::Psn psn, const wire::Aeth& aeth, uint8_t flag,
                          AckPlace place) const;
  void send_plain_ack(wire::PacketSink& sink, AckPlace place);
  void send_nak(wire::PacketSink& sink, const wire::Aeth& nak, AckPlace place);
  void send_sack(wire::PacketSink& sink, AckPlace place);

  QpCommon& qp_;
  ReceiveSource receives_;
  wire::Psn expected_{0};
  uint32_t msn_ = 0;
  std::optional<InboundMessage> message_;
  bool nak_sent_ = false;         // for the present expected_, which gets only one NAK
  ReorderBuffer reorder_buffer_;  // requests behind a gap
  wire::Psn sent_to_{0};  // if the buffer is not empty: the peer has sent all PSNs before this
  ResponderResources resources_;
};

}  // namespace verbena::core
