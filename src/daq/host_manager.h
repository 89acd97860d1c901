// The host's side of the connection manager: asks boards for connections (active), or is asked by
// boards that are masters and by other hosts (passive). Pure: messages and time in, messages and
// events out. The queue pairs are the owner's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/time.h"
#include "daq/message.h"

namespace verbena::daq {

enum class HostOutcome : uint8_t {
  Opened,          // active: `peer` is the board's end
  OpenRefused,     // active: the board says NO_QP, NAK or ERROR; the id is gone
  OpenUnanswered,  // active: all repeats are spent; the id is gone
  Asked,           // passive: accept() or refuse() the id; `peer` wants a connection
  PeerClosed,      // passive or active: the other end closed, and was told so; the id is gone
  PeerRestarted,   // the board opens the same queue pair anew: the old id is gone, Asked follows
  TransmitAsked,   // passive or active: the other end wants data, as `transmit` says
  Closed,          // close() was answered, whatever the answer; the id is gone
  CloseUnanswered,
  SurplusClosed,   // a board opened two for one question; the second is being closed
  WrongLength,     // what follows was dropped, or answered as the protocol has it
  Unmatched,       // an answer to nothing
  CloseOfUnknown,  // NO_QP
  CloseMismatch,   // NAK
  UnknownRequest,
};
const char* text_of(HostOutcome outcome);

struct HostEvent {
  HostOutcome outcome;
  uint32_t id = 0;  // of the connection; 0: about none
  uint32_t peer_ip = 0;
  QpInfo peer{};
  Ack ack = Ack::Null;
  Transmit transmit{};
};

class HostManager {
 public:
  struct Config {
    uint32_t ip = 0;
    uint16_t port = kHostPort;
    Duration timeout = milliseconds(200);  // until a question is asked again
    uint32_t attempts = 10;
    Duration answer_pause = milliseconds(100);  // between two answers to the same question
    Duration restart_after = seconds(1);        // the same question later is a new one
  };
  explicit HostManager(const Config& config) : config_(config) {}

  // Asks the board (or host) at `ip` for a connection to `local`; the answer is an event about the
  // id.
  uint32_t open(uint32_t ip, uint16_t port, const QpInfo& local, Instant now);
  // What was not answered yet is closed once it is.
  void close(uint32_t id, Instant now);
  // Has a board's generator send. Not answered, so not repeated.
  void transmit(uint32_t id, const Transmit& command);

  void accept(uint32_t id, const QpInfo& local, Instant now);
  void refuse(uint32_t id, Ack ack);

  // `source_ip` is whom the datagram came from.
  void on_datagram(std::span<const std::byte> bytes, uint32_t source_ip, Instant now);

  Instant next_deadline() const;
  void on_deadline(Instant now);

  std::optional<Outgoing> next_outgoing();
  std::optional<HostEvent> next_event();
  size_t connections() const { return connections_.size(); }

 private:
  enum class State : uint8_t { Opening, Asked, Open, Closing };
  struct Connection {
    State state = State::Opening;
    bool unwanted = false;  // closed while Opening
    uint32_t ip = 0;        // of the other end
    uint16_t port = 0;      // where it listens
    QpInfo local;
    QpInfo peer;
    Message question;   // said again until it is answered; passive: what was asked
    uint32_t left = 0;  // times to say it
    Instant deadline = kNever;
    Instant since{0};  // accepted
    Instant answered_at{0};
  };
  using Connections = std::map<uint32_t, Connection>;

  void on_answer(const Message& in, uint32_t source_ip, Instant now);
  void on_open(const Message& in, uint32_t source_ip, Instant now);
  void on_close(const Message& in, uint32_t source_ip);
  void on_transmit(const Message& in, uint32_t source_ip);
  void ask(Connection& c, Request request, Instant now);
  Message message_about(const Connection& c) const;
  void answer(const Message& in, const QpInfo& local, Ack ack, uint32_t ip);
  void tell(HostOutcome outcome, uint32_t id, uint32_t ip, const QpInfo& peer, Ack ack = Ack::Null);

  Config config_;
  Connections connections_;
  uint32_t last_id_ = 0;
  std::deque<Outgoing> outgoing_;
  std::deque<HostEvent> events_;
};

}  // namespace verbena::daq
