// The board's side of the connection manager, as the firmware does it: a pool of queue pair
// numbers, one exchange at a time, no repeats as a slave and one as a master. Takes messages and
// time, gives messages and says what happened; the queue pairs' data are somebody else's (board.h).
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

// Habits of the real firmware that a peer may have to live with. Off, the board does the sensible
// thing instead.
struct Quirks {
  bool modify_wedges = false;  // MODIFY_QP_RTS of a ready QP: ERROR, and so is every OPEN_QP until
                               // a CLOSE_QP
  bool modify_hangs = false;   // MODIFY_QP_RTS of a QPN outside the pool: no answer to anything,
                               // for ever
  bool stale_answers = false;  // NO_QP and the NAK for a range say and go to what the exchange
                               // before did
  bool leaks_qpns = false;     // an OPEN_QP that ends in ERROR keeps its QPN
  bool opens_twice = false;    // an OPEN_QP said again takes a second QPN
  bool no_qp_is_ack = false;   // as a master: NO_QP opens the QP as well
  bool loses_pulses = false;   // a request at the instant in which a QP closes or fails is lost: no
                               // answer to anything, for ever
};

// "modify-wedges", ...; their names on a command line, in the order of Quirks.
struct QuirkName {
  const char* name;
  bool Quirks::*member;
  const char* meaning;
};
std::span<const QuirkName> quirk_names();

enum class BoardOutcome : uint8_t {
  WrongLength,       // no answer
  NothingAsked,      // no answer: neither a request nor a command
  UnknownRequest,    // no answer
  Hung,              // no answer, as to everything since a quirk struck
  Opened,            // ACK
  OpenedBefore,      // ACK again: the same question
  Full,              // NO_QP
  OpenFailed,        // ERROR
  Modified,          // ACK
  ModifyFailed,      // ERROR
  ModifyOutOfRange,  // NAK
  Closed,            // ACK
  CloseOutOfRange,   // NAK
  CloseOfClosed,     // ERROR
  TransmitStart,     // no answer; the owner starts the generator
  TransmitUseless,   // no answer: no such QP, or it is not ready
  AnswerUnasked,     // no answer: an ACK or the like that no question of ours waits for
  PeerAccepted,      // master: the QP is ready
  PeerRefused,       // master: its QPN is free again
  PeerSilent,        // master: asked twice, its QPN is free again
  PeerClosed,        // master: CLOSE_QP was answered
};
// What happened, for people.
const char* text_of(BoardOutcome outcome);

enum class BoardQpState : uint8_t { Reset, Asking, Rts, Error };

struct BoardEvent {
  BoardOutcome outcome;
  uint32_t qpn = 0;      // which one it is about, where there is one
  Message message;       // the one that caused it
  uint32_t peer_ip = 0;  // whom it came from, as the message says
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

  // As a master: asks a host for a connection, or to end one. False: no QPN is free, the QP is not
  // ready, or an exchange is under way; there is one at a time.
  bool ask_open(uint32_t host_ip, uint16_t host_port, Instant now);
  bool ask_close(uint32_t qpn, Instant now);
  bool asking() const { return asking_.has_value(); }

  // The owner's queue pair failed. It stays so until it is closed.
  void fail(uint32_t qpn, Instant now);

  BoardQpState state_of(uint32_t qpn) const;
  const QpInfo& peer_of(uint32_t qpn) const { return at(qpn).peer; }
  uint32_t queue_pairs() const { return config_.queue_pairs; }
  bool is_mine(uint32_t qpn) const {
    return qpn >= kFirstQpn && qpn < kFirstQpn + config_.queue_pairs;
  }

  Instant next_deadline() const { return asking_ ? asking_->deadline : kNever; }
  void on_deadline(Instant now);

  std::optional<Outgoing> next_outgoing();
  std::optional<BoardEvent> next_event();

 private:
  struct QueuePair {
    BoardQpState state = BoardQpState::Reset;
    QpInfo peer;
    uint16_t peer_port = 0;
  };
  struct Question {
    Outgoing said;
    uint32_t qpn = 0;
    bool repeated = false;
    Instant deadline;
  };

  QueuePair& at(uint32_t qpn) { return queue_pairs_[qpn - kFirstQpn]; }
  const QueuePair& at(uint32_t qpn) const { return queue_pairs_[qpn - kFirstQpn]; }
  void on_request(const Message& in, Instant now);
  void on_open(const Message& in);
  void on_modify(const Message& in);
  void on_close(const Message& in, Instant now);
  void on_transmit(const Message& in);
  void on_answer(const Message& in);
  std::optional<uint32_t> opened_before(const Message& in) const;
  void give_up(BoardOutcome why, const Message& in);
  // The answer to `in` about one of our queue pairs.
  void answer(const Message& in, const QpInfo& ours, Ack ack);
  void answer_stale(const Message& in, Ack ack);
  void tell(BoardOutcome outcome, uint32_t qpn, const Message& in);

  Config config_;
  std::vector<QueuePair> queue_pairs_;
  std::deque<uint32_t> free_;  // a closed QPN goes to the back
  std::optional<Question> asking_;
  Outgoing last_answer_;  // what stale answers are made from
  bool wedged_ = false;
  bool hung_ = false;
  Instant table_changed_at_{INT64_MIN};  // by a close or a failure
  std::deque<Outgoing> outgoing_;
  std::deque<BoardEvent> events_;
};

}  // namespace verbena::daq
