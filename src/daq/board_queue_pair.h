// BoardQueuePair: an RC requester for SEND and WRITE that behaves as the firmware does. Every
// packet requests an ACK, and recovery is go-back-N. The generator can regenerate all data, so a
// limit on the bytes in flight stands for the board's buffer.
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
  uint32_t max_requests = 32;           // outstanding, as in the firmware
  uint32_t inflight_bytes = 1u << 17;   // capacity for unacknowledged bytes
  uint64_t wrap_bytes = 1u << 24;       // the offset of WRITEs wraps to 0 here
  Duration timeout = milliseconds(20);  // the firmware's: 46 us
  uint32_t retries = 7;                 // consecutive timeouts without progress
  uint32_t rnr_retries = 7;             // consecutive RNR NAKs; 7: no limit
  Overrun overrun = Overrun::Wait;
  double clock_hz = 322.265625e6;  // the unit of gap_cycles
  uint32_t min_gap_cycles = 0;     // lower bound on a command's gap
};

struct BoardQpCounters {
  uint64_t messages_made = 0;  // by the generator, dropped ones included
  uint64_t messages_acked = 0;
  uint64_t bytes_acked = 0;
  uint64_t packets_sent = 0;  // retransmits included
  uint64_t packets_retransmitted = 0;
  uint64_t overruns = 0;  // messages dropped because the buffer was full
  uint64_t timeouts = 0;
  uint64_t sequence_naks = 0;
  uint64_t rnr_naks = 0;
  uint64_t unexpected_responses = 0;  // for no packet in flight
};

enum class BoardQpFailure : uint8_t { None, RetriesExceeded, RnrRetriesExceeded, Refused };

class BoardQueuePair {
 public:
  BoardQueuePair() = default;
  BoardQueuePair(const BoardQpConfig& config, const QpInfo& peer, wire::PathId path);

  // Gives the generator a command. False: it is busy with the previous command, which it continues.
  bool start(const Transmit& command, Instant now);
  bool transferring() const { return messages_left_ != 0 || !requests_.empty(); }

  // An ACK or NAK from the peer.
  void on_response(const wire::Packet& packet, Instant now);

  // Pushes at most one packet to `sink`. Returns its size on the wire, 0 if there was none to send.
  size_t send_one(wire::PacketSink& sink, Instant now);

  void on_deadline(Instant now);
  Instant next_deadline() const;

  BoardQpFailure failure() const { return failure_; }
  uint8_t syndrome() const { return syndrome_; }  // of the NAK that rejected a request
  const BoardQpCounters& counters() const { return counters_; }

 private:
  struct GeneratedMessage {
    uint64_t first_packet;  // index since the start of the connection
    uint32_t packets;
    uint32_t bytes;
    uint64_t offset;      // WRITE: from the peer's base address
    uint32_t first_word;  // of its pattern
    TransferKind kind;
    bool immediate;
  };

  void make_messages(Instant now);
  bool has_room() const;
  void make_message();
  wire::Packet packet_of(const GeneratedMessage& message, uint32_t index) const;
  void on_acked(uint64_t until);
  void go_back_to(uint64_t packet);
  std::optional<uint64_t> packet_with(wire::Psn psn) const;
  void fail(BoardQpFailure failure);

  BoardQpConfig config_;
  QpInfo peer_;
  wire::PathId path_{};

  // The generator.
  Transmit command_;
  uint64_t messages_left_ = 0;
  Instant next_message_at_ = kNever;
  Duration gap_{};
  uint64_t offset_ = 0;
  uint32_t next_word_ = 0;

  // Packet indices count from the start of the connection in 64 bits; PSNs are derived from them.
  std::deque<GeneratedMessage> requests_;
  uint64_t generated_packets_ = 0;
  uint64_t unacked_ = 0;
  uint64_t next_ = 0;        // the packet to send next; goes back after a loss
  uint64_t sent_until_ = 0;  // one past the last packet ever sent
  size_t next_request_ = 0;  // the index in requests_ of the message with `next_`
  uint32_t bytes_in_flight_ = 0;

  Instant timeout_at_ = kNever;
  Instant rnr_until_ = kNever;
  uint32_t timeouts_in_a_row_ = 0;
  uint32_t rnrs_in_a_row_ = 0;
  BoardQpFailure failure_ = BoardQpFailure::None;
  uint8_t syndrome_ = 0;
  BoardQpCounters counters_;
  std::vector<std::byte> payload_;
};

// The wait that an RNR NAK's timer code demands (IBA table 45).
Duration rnr_timer(uint8_t code);

}  // namespace verbena::daq
