// A board's queue pair: an RC requester that knows SEND and WRITE, in the firmware's way. Every
// packet asks for an acknowledgement; what is lost is sent again from the first lost packet on;
// data come from the generator, which can make them again, so a bound on bytes under way stands for
// the board's buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/time.h"
#include "daq/message.h"
#include "wire/packet.h"
#include "wire/packet_io.h"

namespace verbena::daq {

// What happens to a message that is due while the board's buffer is full.
enum class Overrun : uint8_t { Wait, Drop };

struct BoardQpConfig {
  wire::Mtu mtu = wire::Mtu::k4096;
  uint32_t max_requests = 32;           // under way, as in the firmware
  uint32_t inflight_bytes = 1u << 17;   // room for what is not acknowledged
  uint64_t wrap_bytes = 1u << 24;       // offsets of WRITEs begin again here
  Duration timeout = milliseconds(20);  // the firmware's: 46 us
  uint32_t retries = 7;                 // time-outs in a row without progress
  uint32_t rnr_retries = 7;             // RNR NAKs in a row; 7: without end
  Overrun overrun = Overrun::Wait;
  double clock_hz = 322.265625e6;  // what gaps are counted in
  uint32_t min_gap_cycles = 0;     // a slower generator than asked for
};

struct BoardQpCounters {
  uint64_t messages_made = 0;  // by the generator, dropped ones included
  uint64_t messages_acked = 0;
  uint64_t bytes_acked = 0;
  uint64_t packets_sent = 0;  // repeats included
  uint64_t packets_repeated = 0;
  uint64_t overruns = 0;  // messages dropped because the buffer was full
  uint64_t timeouts = 0;
  uint64_t sequence_naks = 0;
  uint64_t rnr_naks = 0;
  uint64_t strange_answers = 0;  // about nothing under way
};

enum class BoardQpFailure : uint8_t { None, RetriesExceeded, RnrRetriesExceeded, Refused };

class BoardQueuePair {
 public:
  BoardQueuePair() = default;
  BoardQueuePair(const BoardQpConfig& config, const QpInfo& peer, wire::PathId path);

  // The generator's orders. False: it is busy with the last ones, and stays so.
  bool start(const Transmit& command, Instant now);
  bool transferring() const { return left_to_make_ != 0 || !requests_.empty(); }

  // An acknowledgement or NAK from the peer.
  void on_answer(const wire::Packet& packet, Instant now);

  // Writes the next packet to `sink`, at most one; returns its size on the wire, 0 if there is none
  // now.
  size_t send_one(wire::PacketSink& sink, Instant now);

  void on_deadline(Instant now);
  Instant next_deadline() const;

  BoardQpFailure failure() const { return failure_; }
  uint8_t syndrome() const { return syndrome_; }  // of the NAK that refused
  const BoardQpCounters& counters() const { return counters_; }

 private:
  struct Made {             // a message under way
    uint64_t first_packet;  // counted from the connection's first
    uint32_t packets;
    uint32_t bytes;
    uint64_t offset;      // WRITE: from the peer's base address
    uint32_t first_word;  // of its pattern
    TransferKind kind;
    bool immediate;
  };

  void make_messages(Instant now);
  bool has_room() const;
  void make_one();
  wire::Packet packet_of(const Made& message, uint32_t index) const;
  void acknowledge(uint64_t until);
  void go_back_to(uint64_t packet);
  std::optional<uint64_t> packet_with(wire::Psn psn) const;
  void fail(BoardQpFailure failure);

  BoardQpConfig config_;
  QpInfo peer_;
  wire::PathId path_{};

  // The generator.
  Transmit command_;
  uint64_t left_to_make_ = 0;
  Instant next_made_at_ = kNever;
  Duration gap_{};
  uint64_t offset_ = 0;
  uint32_t next_word_ = 0;

  // Packets are counted from the connection's first in 64 bits; PSNs are made from that.
  std::deque<Made> requests_;
  uint64_t made_packets_ = 0;
  uint64_t unacked_ = 0;
  uint64_t next_ = 0;        // the one to send next; falls back when something was lost
  uint64_t sent_until_ = 0;  // one behind the last that was ever sent
  size_t next_request_ = 0;  // in which of requests_ `next_` lies
  uint32_t bytes_under_way_ = 0;

  Instant timeout_at_ = kNever;
  Instant rnr_until_ = kNever;
  uint32_t timeouts_in_a_row_ = 0;
  uint32_t rnrs_in_a_row_ = 0;
  BoardQpFailure failure_ = BoardQpFailure::None;
  uint8_t syndrome_ = 0;
  BoardQpCounters counters_;
  std::vector<std::byte> payload_;
};

// How long an RNR NAK asks to wait (IBA table 45).
Duration rnr_timer(uint8_t code);

}  // namespace verbena::daq
