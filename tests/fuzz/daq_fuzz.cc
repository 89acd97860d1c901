// Feeds any messages, packets and times to a board and a host: their state stays bounded, a message
// causes at most one, and no queue pair number is assigned twice.
//
// The input is a list of steps: one byte selects the action, the next few bytes its arguments.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "daq/board.h"
#include "daq/host_manager.h"

namespace {

using namespace verbena;
using namespace verbena::daq;

constexpr uint32_t kHostIp = 0x7F000001;
constexpr uint32_t kQueuePairs = 4;

class Counter final : public wire::PacketSink {
 public:
  size_t room() const override { return room_; }
  void push(const wire::TxPacket& p) override {
    VERBENA_CHECK(room_ > 0 && p.header_bytes >= wire::kBthBytes && p.payload_bytes <= 1024);
    --room_;
  }

 private:
  size_t room_ = 64;
};

class Fuzz {
 public:
  Fuzz(const uint8_t* data, size_t size) : data_(data), size_(size), board_(config(data, size)) {}

  void run() {
    at_ = 2;
    while (at_ < size_) {
      step();
      size_t messages = 0;
      while (board_.next_message()) ++messages;
      VERBENA_CHECK(messages <= 2);
      while (board_.next_line()) {
      }
      Counter sink;
      board_.transmit(sink, now_);
      while (host_.next_outgoing()) {
      }
      while (const auto event = host_.next_event()) {
        if (event->outcome == HostOutcome::OpenRequested)
          host_.accept(event->id, {.qpn = event->id}, now_);
      }
    }
  }

 private:
  static Board::Config config(const uint8_t* data, size_t size) {
    Board::Config c;
    c.manager.ip = 0x7F000002;
    c.manager.queue_pairs = kQueuePairs;
    c.queue_pair.mtu = wire::Mtu::k1024;
    c.queue_pair.overrun = size > 1 && (data[1] & 1) != 0 ? Overrun::Drop : Overrun::Wait;
    size_t bit = 0;
    for (const QuirkName& q : quirk_names()) {
      c.manager.quirks.*q.member = size > 0 && (data[0] >> bit++ & 1) != 0;
    }
    return c;
  }
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  uint32_t some_qpn() { return kFirstQpn + byte() % (kQueuePairs + 1); }

  void step() {
    switch (byte() % 6) {
      case 0: {  // a message, mostly a valid one
        Message m{.info_valid = true, .request = static_cast<Request>(byte() % 8)};
        m.ack_valid = byte() % 4 == 0;
        m.ack = static_cast<Ack>(byte() % 8);
        m.local = {.qpn = byte(), .psn = byte(), .ip = kHostIp + byte() % 8};
        m.remote = {.qpn = some_qpn(), .ip = 0x7F000002};
        m.transmit = {byte() % 2 == 0,
                      byte() % 4 != 0,
                      byte() % 2 == 0,
                      static_cast<TransferKind>(byte() % 2),
                      uint32_t{byte()} * 37,
                      byte(),
                      byte() * 9u};
        deliver(m.store());
        return;
      }
      case 1: {  // any bytes
        std::vector<std::byte> bytes(byte() % 80);
        for (std::byte& b : bytes) b = std::byte{byte()};
        deliver(bytes);
        return;
      }
      case 2: {  // a response to its packets
        wire::Packet p;
        p.bth.opcode = byte() % 8 == 0 ? byte() : static_cast<uint8_t>(wire::Opcode::RcAck);
        p.bth.destination = wire::Qpn(some_qpn());
        p.bth.psn = wire::Psn(byte());
        p.aeth = {static_cast<wire::AckKind>(byte() % 4), static_cast<uint8_t>(byte() % 32), 0};
        std::array<std::byte, 64> bytes;
        board_.on_packet(std::span(bytes).first(wire::store_headers(p, bytes.data())),
                         kHostIp + byte() % 8, now_);
        return;
      }
      case 3:
        now_ = now_ + microseconds(int64_t{byte()} * byte());
        board_.on_deadline(now_);
        host_.on_deadline(now_);
        return;
      case 4:
        board_.begin({kHostIp,
                      kHostPort,
                      1u + byte() % 3,
                      {true, true, false, TransferKind::Send, 64, 3, 0}},
                     now_);
        return;
      default:
        if (host_.connections() < 32)
          host_.open(kHostIp + byte() % 4, kBoardPort, {.qpn = byte()}, now_);
        host_.close(byte(), now_);
    }
  }

  void deliver(std::span<const std::byte> bytes) {
    board_.on_message(bytes, now_);
    if (host_.connections() < 32) host_.on_datagram(bytes, kHostIp + byte() % 4, now_);
  }

  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  Instant now_{0};
  Board board_;
  HostManager host_{{.ip = kHostIp}};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Fuzz(data, size).run();
  return 0;
}
