// Responder: executes a peer's requests in PSN order, exactly once, in registered memory only, and
// responds. Each request runs through one straight line of checks that ends in a Verdict.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "core/qp_sides.h"
#include "core/receive_source.h"
#include "core/reorder_buffer.h"

namespace verbena::core {

class Responder final : public ReceiveSide {
 public:
  Responder(QpCommon& qp, uint32_t max_wr, uint32_t max_sges);

  Status post(const ReceiveRequest& request) override { return receives_.post(request); }
  void on_request(const wire::Packet& packet, const wire::RxMeta& meta) override;
  // The fast path (fast_path.cc). `to`: where the payload of a WRITE goes.
  bool prepare_fast_receive(const wire::Packet& packet, std::byte*& to);
  void commit_fast_receive(const wire::Packet& packet, std::byte* to);
  uint32_t send_responses(wire::PacketSink& sink, uint32_t budget, bool defer_last) override;
  uint32_t send_ack(wire::PacketSink& sink, AckPlace place) override;
  wire::OptionalPsn ack_to_piggyback() const override;
  bool ready() const override { return pending_resources_ != 0 || qp_.acks.is_due(); }
  void start() override;
  void resize_resources(uint32_t count) override;
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

  // A responder resource: an executed READ, atomic, ATOMIC WRITE or FLUSH whose response can be
  // replayed.
  struct Resource {
    wire::Psn first{0};
    uint32_t packet_payload_bytes = 0;  // READ: of each response packet except the last
    uint32_t packets = 0;
    uint32_t msn = 0;
    uint32_t pd = 0;
    wire::Verb verb{};
    bool used = false;
    bool pending = false;
    bool is_replay = false;     // the pending response was requested before
    uint32_t next_packet = 0;   // READ: the next packet to send
    uint32_t first_packet = 0;  // of the request (or its duplicate) that the response is for
    uint32_t end_packet = 0;
    wire::Reth reth;  // READ
    uint64_t original = 0;

    bool is_atomic() const {
      return verb == wire::Verb::CompareSwap || verb == wire::Verb::FetchAdd;
    }
  };

  void run(const wire::Packet& packet);
  void run_buffered();
  bool has_gap() const;
  void on_duplicate(const wire::Packet& packet);
  void on_ahead(const wire::Packet& packet);
  bool choose_srq(const wire::Packet& packet);
  Verdict check_order(const wire::Packet& packet) const;
  Verdict check_length(const wire::Packet& packet) const;
  Verdict check_receive(const wire::Packet& packet) const;
  Verdict execute(const wire::Packet& packet);
  Verdict execute_send(const wire::Packet& packet);
  Verdict execute_write(const wire::Packet& packet);
  Verdict execute_read(const wire::Packet& packet);
  Verdict execute_atomic(const wire::Packet& packet);
  Verdict execute_atomic_write(const wire::Packet& packet);
  Verdict execute_flush(const wire::Packet& packet);
  void finish_receive(const wire::Packet& packet, WcOpcode opcode, uint32_t byte_count);
  void apply(Verdict verdict, const wire::Packet& packet);
  void refuse(Verdict verdict, const wire::Packet& packet);
  bool has_free_resource() const;
  Resource* take_resource(wire::Verb verb);
  void start_response(Resource& resource, uint32_t from, uint32_t packets, bool is_replay);
  void respond_empty(Resource& resource);
  Resource* next_pending();
  bool send_read_packet(Resource& resource, wire::PacketSink& sink);
  void send_atomic_ack(Resource& resource, wire::PacketSink& sink);
  wire::Packet ack_packet(wire::Psn psn, const wire::Aeth& aeth, uint8_t flag,
                          AckPlace place) const;
  void send_plain_ack(wire::PacketSink& sink, AckPlace place);
  void send_nak(wire::PacketSink& sink, const wire::Aeth& nak, AckPlace place);
  void send_sack(wire::PacketSink& sink, AckPlace place);
  uint32_t packets_for(const wire::Packet& read) const;

  QpCommon& qp_;
  ReceiveSource receives_;
  wire::Psn expected_{0};
  uint32_t msn_ = 0;
  std::optional<InboundMessage> message_;
  bool nak_sent_ = false;         // for the present expected_, which gets only one NAK
  ReorderBuffer reorder_buffer_;  // requests behind a gap
  wire::Psn sent_to_{0};  // if the buffer is not empty: the peer has sent all PSNs before this
  std::vector<Resource> resources_;  // a ring, max_dest_read_atomic deep
  size_t next_resource_ = 0;
  uint32_t pending_resources_ = 0;
};

}  // namespace verbena::core
