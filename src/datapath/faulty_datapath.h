// A datapath that loses, repeats, reorders and delays the packets of another one, by a seed: a bad
// network for programs that run on a good one. Faults strike single packets, never whole trains.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "datapath/datapath.h"
#include "datapath/packets_only.h"

namespace verbena::datapath {

// Probabilities per packet.
struct Faults {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;  // held back until `hold` others have overtaken it, or nobody comes
  double corrupt = 0;  // lost as well: the ICRC would have caught it
  double delay = 0;    // held back for some receive() calls, at most 16 * `hold`
  uint32_t hold = 3;
  bool on_send = false;  // strike packets on their way out too
  uint64_t seed = 1;
};

// Reads "loss=0.01,duplicate=0.001,reorder=0.01,corrupt=0.001,delay=0.1,hold=3,send=1,seed=7"; what
// is not named stays as it is by default.
Result<Faults> parse_faults(std::string_view text);

// A path that goes through it is one that loses packets, whatever the medium: packet_bytes() is
// 0, so that the engine cuts for the path MTU and recovers as it does on the wire.
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
  // Packets are held that no descriptor announces.
  bool pending() const override { return !held_.empty() || inner_->pending(); }
  wire::PacketSink& sink() override { return *this; }
  void flush() override;
  int wait_fd() const override { return inner_->wait_fd(); }
  void append_counters(std::vector<Counter>& to) const override;

 private:
  // A received packet that waits for its time: after so many others, or so many calls.
  struct Held {
    std::vector<std::byte> bytes;
    uint32_t packet_payload_bytes = 0;
    wire::RxMeta meta;
    uint32_t packets_left = 0;
    uint32_t calls_left = 0;
    Held(const wire::RxPacket& packet, uint32_t packets, uint32_t calls);
  };
  // The same on the way out; a flush ends the waiting.
  struct HeldOut {
    wire::TxPacket packet;  // without payload
    std::vector<std::byte> payload;
    uint32_t packets_left = 0;
  };

  size_t room() const override;
  void push(const wire::TxPacket& packet) override;
  void push_inner(const wire::TxPacket& packet);
  void release_out(bool all);
  bool strike_dead();
  void deliver(const wire::RxPacket& packet);
  void release_due(bool nothing_came);

  std::unique_ptr<Datapath> inner_;
  PacketsOnly local_peer_;
  Faults faults_;
  Prng prng_;
  std::vector<wire::RxPacket> packets_;  // what the last receive() returned
  std::vector<Held> released_;           // what some of them point into
  std::vector<Held> held_;
  std::vector<HeldOut> held_out_;
  uint64_t lost_ = 0;
  uint64_t duplicated_ = 0;
  uint64_t reordered_ = 0;
  uint64_t corrupted_ = 0;
  uint64_t delayed_ = 0;
};

}  // namespace verbena::datapath
