// FaultyDatapath: a decorator that applies the faults of wire/packet_faults.h, determined by a
// seed. It emulates a bad network. Faults apply to single packets, never to whole batches.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "datapath/datapath.h"
#include "datapath/packets_only.h"
#include "wire/packet_faults.h"

namespace verbena::datapath {

struct Faults {
  wire::PacketFaults packet{};
  // A reordered packet is held back until so many others have overtaken it, or receive() is empty.
  // A delayed packet is held back for some receive() calls, at most 16 times so many.
  uint32_t hold = 3;
  bool on_send = false;  // apply faults to sent packets too
  uint64_t seed = 1;
};

// Parses
// "loss=0.01,duplicate=0.001,reorder=0.01,corrupt=0.001,delay=0.1,mark=0.1,hold=3,send=1,seed=7".
// Faults that are not named keep their defaults.
Result<Faults> parse_faults(std::string_view text);

// Paths through it lose packets, whatever the medium. packet_bytes() is therefore 0: the engine
// sends packets of the path MTU and recovers as it does on the wire.
class FaultyDatapath final : public Datapath, private wire::PacketSink {
 public:
  FaultyDatapath(std::unique_ptr<Datapath> inner, const Faults& faults);

  Result<wire::PathId> open_path(const wire::Route& route) override {
    return inner_->open_path(route);
  }
  void close_path(wire::PathId path) override;
  std::span<const wire::RxPacket> receive() override;
  void release() override { inner_->release(); }
  void report_ip_headers() override { inner_->report_ip_headers(); }
  // No descriptor reports the held packets.
  bool pending() const override { return !held_.empty() || inner_->pending(); }
  wire::PacketSink& sink() override { return *this; }
  void flush() override;
  int wait_fd() const override { return inner_->wait_fd(); }
  void append_counters(std::vector<Counter>& to) const override;

 private:
  // A received packet that is delivered after so many others, or so many calls.
  struct Held {
    std::vector<std::byte> bytes;
    uint32_t packet_payload_bytes = 0;
    wire::RxMeta meta;
    uint32_t packets_left = 0;
    uint32_t calls_left = 0;
    Held(const wire::RxPacket& packet, uint32_t packets, uint32_t calls);
  };
  // A packet to send, held at most until the next flush.
  struct HeldOut {
    wire::TxPacket packet;  // without payload
    std::vector<std::byte> payload;
    uint32_t packets_left = 0;
  };

  size_t room() const override;
  void push(const wire::TxPacket& packet) override;
  void push_inner(const wire::TxPacket& packet);
  void release_out(bool all);
  void send_now(const wire::TxPacket& packet, int copies);
  void hold_out(const wire::TxPacket& packet);
  void receive_one(const wire::RxPacket& packet);
  void deliver(const wire::RxPacket& packet);
  wire::RxPacket marked(const wire::RxPacket& packet);
  void release_due(bool received_none);

  std::unique_ptr<Datapath> inner_;
  PacketsOnly local_peer_;
  Faults faults_;
  Prng prng_;
  std::vector<wire::RxPacket> packets_;  // returned by the last receive()
  std::deque<wire::RxMeta> marked_;      // some of packets_ point into these
  std::vector<Held> released_;           // the same
  std::vector<Held> held_;
  std::vector<HeldOut> held_out_;
  wire::PacketFaultCounts counts_;
};

}  // namespace verbena::datapath
