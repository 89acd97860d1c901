// One engine with one connected queue pair; the test is the peer. Time is explicit.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/engine.h"
#include "wire/local_peer.h"
#include "wire/packet.h"

namespace verbena::core {

// Its window is wide from the start.
inline constexpr CongestionAlgorithm kAimdAlgorithm{"aimd", "", make_aimd};

using Bytes = std::vector<std::byte>;
using Completed = std::vector<std::pair<uint64_t, WcStatus>>;  // completions: wr_id and status

// A packet as the engine sent it.
struct Sent {
  Bytes bytes;
  wire::Packet packet;  // its payload points into bytes
  bool in_window = false;
  bool last = false;
  bool ecn_capable = true;
  wire::Opcode opcode() const { return static_cast<wire::Opcode>(packet.bth.opcode); }
  uint32_t psn() const { return packet.bth.psn.value(); }
};

// As a shared-memory path it can be full. It supports nothing else unless a test overrides it.
class RecordingSink : public wire::PacketSink, public wire::LocalPeer {
 public:
  explicit RecordingSink(size_t room, bool full = false)
      : PacketSink(this), room_(room), full_(full) {}
  size_t room() const override { return room_; }
  void push(const wire::TxPacket& packet) override;
  bool is_full(wire::PathId) const override { return full_; }
  bool is_asleep(wire::PathId) const override { return false; }
  bool send_short_ack(wire::PathId, const wire::Ack&) override { return false; }
  bool access(const wire::OneSided&) override { return false; }
  bool retract(const wire::Unread&) override { return false; }
  std::vector<Sent> sent;

 private:
  size_t room_;
  bool full_;
};

struct TestShape {
  wire::Mtu mtu = wire::Mtu::k256;
  uint32_t sq_psn = 100;
  uint32_t rq_psn = 500;
  uint32_t max_read_atomic = 4;
  uint32_t max_dest_read_atomic = 4;
  uint8_t timeout = 14;  // 67 ms
  uint8_t retry_count = 7;
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 12;
  uint32_t access = kRemoteWrite | kRemoteRead | kRemoteAtomic;
  uint32_t depth = 16;
  SharedReceiveQueue* srq = nullptr;
  QpType type = QpType::Rc;
  uint32_t xrc_domain = 0;
  uint32_t path_packet_bytes = 0;
  QpState state = QpState::Rts;  // or Rtr
};

class EngineTest : public testing::Test {
 public:
  static constexpr uint32_t kPd = 1;
  static constexpr uint64_t kIova = 0x10000;
  static constexpr uint32_t kRegionBytes = 128 * 1024;
  static constexpr wire::Qpn kPeerQpn = wire::Qpn::of_slot(2, 7);

  explicit EngineTest(bool selective_repeat = true, bool fast_path = true,
                      const CongestionAlgorithm& congestion = kAimdAlgorithm);

  // The queue pair of most tests, made by connect().
  QueuePair& qp() { return *qp_; }
  void connect(const TestShape& shape = {});
  QueuePair& make_connected(const TestShape& shape);
  void to_state(QueuePair& qp, QpState state);

  // Requests of ours, signalled unless flags say otherwise. Addresses are offsets into memory_.
  Status post(SendOp op, uint64_t wr_id, uint32_t length, uint32_t flags = kSignaled,
              uint64_t local_offset = 0);
  Status post_receive(uint64_t wr_id, uint32_t length, uint64_t offset = 0);

  std::vector<Sent> transmit(size_t room = 10000);
  // The opcodes that transmit() sends.
  std::vector<wire::Opcode> transmit_opcodes();

  // Packets of the peer. They have no extension flags unless the test sets them.
  wire::Packet request(wire::Opcode opcode, uint32_t psn) const;
  ExtensionFlags peer_flags() const { return flags_sent_by(kPeerQpn, qp_->qpn()); }
  ExtensionFlags own_flags() const { return flags_sent_by(qp_->qpn(), kPeerQpn); }
  void receive(const wire::Packet& packet, std::span<const std::byte> payload = {});
  void receive(const wire::Packet& packet, std::span<const std::byte> payload,
               const wire::RxMeta& meta);
  // Several packets without payload, as one GRO batch delivers them.
  void receive_together(std::initializer_list<wire::Packet> packets);
  void receive_ack(uint32_t psn);
  void receive_nak(uint32_t psn, wire::AckKind kind, uint8_t value);

  // Moves time to the next deadline and calls on_deadline. False if there is no deadline.
  bool next_deadline();
  // Lets the local ACK timeout of the default shape pass, and with it the probe timeout.
  void time_out();

  std::vector<Completion> poll();
  // wr_id and status of every completion since the last call.
  std::vector<std::pair<uint64_t, WcStatus>> completions();
  uint64_t counter(CounterId id) { return engine_.state().counters[id]; }
  std::vector<EventKind> events();

  Engine engine_;
  CompletionQueue cq_{256};
  QueuePair* qp_ = nullptr;
  Instant now_{1000};
  bool path_full_ = false;  // transmit() finds the path to the peer full
  alignas(64) std::array<std::byte, kRegionBytes> memory_{};
  uint32_t key_ = 0;
  wire::Gid our_gid_;
  wire::Gid peer_gid_;
};

Bytes pattern(size_t length, uint8_t seed = 1);

}  // namespace verbena::core
