// The board's side of the connection manager, as in the firmware: a pool of QPNs and one exchange
// at a time. A slave never retransmits, a master does so once. Messages and time in, messages and
// events out; Board (board.h) owns the queue pairs.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "daq/message.h"

namespace verbena::daq {

// Faults of the real firmware that a peer may have to handle. With a quirk off, the board behaves
// correctly.
struct Quirks {
  bool modify_wedges = false;  // MODIFY_QP_RTS of a ready QP gets ERROR, and so does every OPEN_QP
                               // until a CLOSE_QP
  bool modify_hangs = false;   // after MODIFY_QP_RTS of a QPN outside the pool the connection
                               // manager never responds again
  bool stale_answers = false;  // NO_QP, and NAK for a QPN outside the pool, have the content and
                               // the receiver of the previous response
  bool leaks_qpns = false;     // an OPEN_QP that ends in ERROR keeps its QPN
  bool opens_twice = false;    // a duplicate OPEN_QP takes a second QPN
  bool no_qp_is_ack = false;   // as a master: NO_QP opens the QP as ACK does
  bool loses_pulses = false;   // after a request at the instant at which a QP closes or fails the
                               // connection manager never responds again
};

// The quirks' names on the command line ("modify-wedges", ...), in the order of Quirks.
struct QuirkName {
  const char* name;
  bool Quirks::*member;
  const char* meaning;
};
std::span<const QuirkName> quirk_names();

enum class BoardOutcome : uint8_t {
  WrongLength,         // no response
  NoRequest,           // no response: neither a request nor a transmit command
  UnknownRequest,      // no response
  Hung,                // no response: a quirk has stopped the connection manager
  Opened,              // ACK
  DuplicateOpen,       // ACK again: the same request
  Full,                // NO_QP
  OpenFailed,          // ERROR
  Modified,            // ACK
  ModifyFailed,        // ERROR
  ModifyOutOfRange,    // NAK
  Closed,              // ACK
  CloseOutOfRange,     // NAK
  CloseOfClosed,       // ERROR
  TransmitStart,       // no response; the owner starts the generator
  TransmitIgnored,     // no response: no such QP, or it is not ready
  UnexpectedResponse,  // no response: it matches no request of this board
  PeerAccepted,        // master: the QP is ready
  PeerRefused,         // master: its QPN is free again
  PeerSilent,          // master: no response to two requests, its QPN is free again
  PeerClosed,          // master: the host responded to CLOSE_QP
};
const char* text_of(BoardOutcome outcome);  // for the log

enum class BoardQpState : uint8_t { Reset, Opening, Rts, Error };

struct BoardEvent {
  BoardOutcome outcome;
  uint32_t qpn = 0;      // the queue pair concerned, 0 if none
  Message message;       // the message that caused the event
  uint32_t peer_ip = 0;  // the sender's address in the message
};

class BoardManager {
 public:
  struct Config {
    uint32_t ip = 0;
    uint32_t queue_pairs = 8;
    Quirks quirks{};
    Duration master_timeout = milliseconds(310);  // 10^8 cycles
  };
  explicit BoardManager(const Config& config);

  // A datagram to the board's port.
  void on_datagram(std::span<const std::byte> bytes, Instant now);

  // As a master: requests a connection from a host, or its end. False: no QPN is free, the QP is
  // not ready, or an exchange is pending; there is at most one.
  bool request_open(uint32_t host_ip, uint16_t host_port, Instant now);
  bool request_close(uint32_t qpn, Instant now);
  bool exchange_pending() const { return exchange_.has_value(); }

  // The owner reports that a queue pair failed. The queue pair stays in Error until it is closed.
  void fail(uint32_t qpn, Instant now);

  BoardQpState state_of(uint32_t qpn) const;
  const QpInfo& peer_of(uint32_t qpn) const { return at(qpn).peer; }
  uint32_t queue_pairs() const { return config_.queue_pairs; }
  bool is_in_pool(uint32_t qpn) const {
    return qpn >= kFirstQpn && qpn < kFirstQpn + config_.queue_pairs;
  }

  Instant next_deadline() const { return exchange_ ? exchange_->deadline : kNever; }
  void on_deadline(Instant now);

  std::optional<Outgoing> next_outgoing();
  std::optional<BoardEvent> next_event();

 private:
  struct QueuePair {
    BoardQpState state = BoardQpState::Reset;
    QpInfo peer;
    uint16_t peer_port = 0;
  };
  struct Exchange {
    Outgoing request;
    uint32_t qpn = 0;
    bool is_retransmitted = false;
    Instant deadline;
  };

  QueuePair& at(uint32_t qpn) { return queue_pairs_[qpn - kFirstQpn]; }
  const QueuePair& at(uint32_t qpn) const { return queue_pairs_[qpn - kFirstQpn]; }
  void on_request(const Message& in, Instant now);
  void on_open(const Message& in);
  void on_modify(const Message& in);
  void on_close(const Message& in, Instant now);
  void on_transmit(const Message& in);
  void on_response(const Message& in);
  std::optional<uint32_t> find_open_qp(const Message& in) const;
  void fail_exchange(BoardOutcome why, const Message& in);
  // Queues the response to `in` about queue pair `ours`.
  void respond(const Message& in, const QpInfo& ours, Ack ack);
  void respond_stale(const Message& in, Ack ack);
  void report(BoardOutcome outcome, uint32_t qpn, const Message& in);

  Config config_;
  std::vector<QueuePair> queue_pairs_;
  std::deque<uint32_t> free_;  // a closed QPN goes to the back
  std::optional<Exchange> exchange_;
  Outgoing last_response_;  // for the quirk stale_answers
  bool wedged_ = false;
  bool hung_ = false;
  Instant table_changed_at_{INT64_MIN};  // last close or failure of a queue pair
  std::deque<Outgoing> outgoing_;
  std::deque<BoardEvent> events_;
};

}  // namespace verbena::daq
