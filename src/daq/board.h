// A whole board without its sockets: connection manager, queue pairs and the speed of its link.
// Four verbs, as the engine has: datagrams in, time in, packets and messages out, next deadline
// out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "daq/board_manager.h"
#include "daq/board_queue_pair.h"
#include "wire/packet_io.h"

namespace verbena::daq {

std::string print_ip(uint32_t ip);

class Board {
 public:
  struct Config {
    BoardManager::Config manager;
    BoardQpConfig queue_pair;
    double link_gbps = 0;  // 0: as fast as packets are taken
  };
  // As a master: opens `streams` queue pairs to a host, sends what `transmit` says and closes them.
  struct Mission {
    uint32_t host_ip = 0;
    uint16_t host_port = kHostPort;
    uint32_t streams = 1;
    Transmit transmit;
  };
  struct Counters {
    uint64_t foreign_packets = 0;  // not an acknowledgement, or for no queue pair that is open
    uint64_t cm_messages = 0;
  };

  explicit Board(const Config& config);

  void begin(const Mission& mission, Instant now);
  bool mission_done() const;

  // A datagram to the connection manager's port.
  void on_message(std::span<const std::byte> bytes, Instant now);
  // A RoCE packet to the board, ICRC checked and removed.
  void on_packet(std::span<const std::byte> bytes, uint32_t source_ip, Instant now);

  // Puts packets into `sink` while there are some, it has room and the link is free.
  void transmit(wire::PacketSink& sink, Instant now);
  std::optional<Outgoing> next_message() { return manager_.next_outgoing(); }

  Instant next_deadline(Instant now) const;
  void on_deadline(Instant now);

  // The host that each queue pair's packets go to, 0 while there was none; a path's number is its
  // place here.
  std::span<const uint32_t> peers() const { return peers_; }

  // What happened, for people.
  std::optional<std::string> next_line();

  BoardQpState state_of(uint32_t qpn) const { return manager_.state_of(qpn); }
  // Of a queue pair that is or was open; since it was opened last.
  const BoardQueuePair& queue_pair(uint32_t qpn) const { return queue_pairs_[qpn - kFirstQpn]; }
  BoardQpCounters totals() const;  // of all connections there were
  const Counters& counters() const { return counters_; }
  bool transferring() const;

 private:
  void take_events(Instant now);
  void open(uint32_t qpn, Instant now);
  void start(uint32_t qpn, const Transmit& command, Instant now);
  void retire(uint32_t qpn);
  void note_failure(uint32_t qpn, Instant now);
  void pursue_mission(Instant now);
  BoardQueuePair& at(uint32_t qpn) { return queue_pairs_[qpn - kFirstQpn]; }
  bool is_ready(uint32_t qpn) const { return manager_.state_of(qpn) == BoardQpState::Rts; }
  uint32_t end_qpn() const { return kFirstQpn + manager_.queue_pairs(); }

  Config config_;
  BoardManager manager_;
  std::vector<BoardQueuePair> queue_pairs_;
  std::vector<uint32_t> peers_;
  uint32_t turn_ = 0;        // which queue pair sends first
  Instant link_free_at_{0};  // when what was sent will have left
  bool link_waits_ = false;  // something is left to send when it is free
  std::optional<Mission> mission_;
  uint32_t to_open_ = 0;
  std::deque<uint32_t> on_mission_;  // queue pairs opened for it and not closed
  BoardQpCounters past_;             // of connections that are closed
  Counters counters_;
  std::deque<std::string> lines_;
};

}  // namespace verbena::daq
