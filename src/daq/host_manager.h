// HostManager: the host's side of the connection manager. An active host requests connections from
// boards; a passive host accepts requests from master boards and other hosts. Messages and time in,
// messages and events out; the caller owns the queue pairs.
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
  Opened,             // active: `peer` is the board's end
  OpenRefused,        // active: the board sent NO_QP, NAK or ERROR; the id is no longer valid
  OpenTimedOut,       // active: no response to any attempt; the id is no longer valid
  OpenRequested,      // passive: `peer` requests a connection; accept() or refuse() the id
  PeerClosed,         // the peer closed and got an ACK; the id is no longer valid
  PeerRestarted,      // the board reopened the queue pair: the old id ends, OpenRequested follows
  TransmitRequested,  // the peer requests data as in `transmit`
  Closed,             // any response to close() arrived; the id is no longer valid
  CloseTimedOut,
  SurplusClosed,  // a board opened two queue pairs for one request; the second is being closed
  // Invalid messages, dropped or rejected as the protocol demands.
  WrongLength,
  Unmatched,       // a response without a request
  CloseOfUnknown,  // NO_QP
  CloseMismatch,   // NAK
  UnknownRequest,
};
const char* text_of(HostOutcome outcome);

struct HostEvent {
  HostOutcome outcome;
  uint32_t id = 0;  // of the connection; 0: none
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
    Duration timeout = milliseconds(200);  // until a request is retransmitted
    uint32_t attempts = 10;
    Duration response_interval = milliseconds(100);  // between two responses to duplicates
    Duration restart_after = seconds(1);             // a later duplicate is a new request
  };
  explicit HostManager(const Config& config) : config_(config) {}

  // Requests a connection to `local` from the board or host at `ip`. Returns the id, about which an
  // event reports the outcome.
  uint32_t open(uint32_t ip, uint16_t port, const QpInfo& local, Instant now);
  // A connection that is still opening is closed when the response arrives.
  void close(uint32_t id, Instant now);
  // Commands a board's generator to send. The protocol has no response to it, so it is sent once.
  void transmit(uint32_t id, const Transmit& command);

  void accept(uint32_t id, const QpInfo& local, Instant now);
  void refuse(uint32_t id, Ack ack);

  // `source_ip` is the sender of the datagram.
  void on_datagram(std::span<const std::byte> bytes, uint32_t source_ip, Instant now);

  Instant next_deadline() const;
  void on_deadline(Instant now);

  std::optional<Outgoing> next_outgoing();
  std::optional<HostEvent> next_event();
  size_t connections() const { return connections_.size(); }

 private:
  enum class State : uint8_t { Opening, Requested, Open, Closing };
  struct Connection {
    State state = State::Opening;
    bool close_when_open = false;  // close() was called while Opening
    uint32_t ip = 0;               // of the peer
    uint16_t port = 0;             // on which the peer listens
    QpInfo local;
    QpInfo peer;
    Message request;  // active: retransmitted until the response arrives; passive: received
    uint32_t retransmits_left = 0;
    Instant deadline = kNever;
    Instant accepted_at{0};
    Instant responded_at{0};
  };
  using Connections = std::map<uint32_t, Connection>;

  void on_response(const Message& in, uint32_t source_ip, Instant now);
  void on_open(const Message& in, uint32_t source_ip, Instant now);
  void on_close(const Message& in, uint32_t source_ip);
  void on_transmit(const Message& in, uint32_t source_ip);
  void send_request(Connection& c, Request request, Instant now);
  Message message_about(const Connection& c) const;
  void respond(const Message& in, const QpInfo& local, Ack ack, uint32_t ip);
  void report(HostOutcome outcome, uint32_t id, uint32_t ip, const QpInfo& peer,
              Ack ack = Ack::Null);

  Config config_;
  Connections connections_;
  uint32_t last_id_ = 0;
  std::deque<Outgoing> outgoing_;
  std::deque<HostEvent> events_;
};

}  // namespace verbena::daq
