// Board: a whole board without sockets: connection manager, queue pairs and link speed. Its
// interface is that of the engine: datagrams and time in; packets, messages and the next deadline
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
    double link_gbps = 0;  // 0: no limit
  };
  // As a master: the board opens `streams` queue pairs to a host, sends as `transmit` commands on
  // each, and closes them.
  struct MasterTask {
    uint32_t host_ip = 0;
    uint16_t host_port = kHostPort;
    uint32_t streams = 1;
    Transmit transmit;
  };
  struct Counters {
    uint64_t foreign_packets = 0;  // not an ACK or NAK, or for no open queue pair
    uint64_t cm_messages = 0;
  };

  explicit Board(const Config& config);

  void begin(const MasterTask& task, Instant now);
  bool master_task_done() const;

  // A datagram to the connection manager's port.
  void on_message(std::span<const std::byte> bytes, Instant now);
  // A RoCE packet to the board, ICRC checked and removed.
  void on_packet(std::span<const std::byte> bytes, uint32_t source_ip, Instant now);

  // Pushes packets to `sink` while there are packets, the sink has room and the link is free.
  void transmit(wire::PacketSink& sink, Instant now);
  std::optional<Outgoing> next_message() { return manager_.next_outgoing(); }

  Instant next_deadline(Instant now) const;
  void on_deadline(Instant now);

  // The host of each queue pair's last connection, 0 if it had none. A path ID is an index into
  // this list.
  std::span<const uint32_t> peers() const { return peers_; }

  // The next log line.
  std::optional<std::string> next_line();

  BoardQpState state_of(uint32_t qpn) const { return manager_.state_of(qpn); }
  // The queue pair's present or last connection.
  const BoardQueuePair& queue_pair(uint32_t qpn) const { return queue_pairs_[qpn - kFirstQpn]; }
  BoardQpCounters totals() const;  // of all connections, closed ones included
  const Counters& counters() const { return counters_; }
  bool transferring() const;

 private:
  void process_events(Instant now);
  void open(uint32_t qpn, Instant now);
  void start(uint32_t qpn, const Transmit& command, Instant now);
  void retire(uint32_t qpn);
  void report_failure(uint32_t qpn, Instant now);
  void advance_master_task(Instant now);
  BoardQueuePair& at(uint32_t qpn) { return queue_pairs_[qpn - kFirstQpn]; }
  bool is_ready(uint32_t qpn) const { return manager_.state_of(qpn) == BoardQpState::Rts; }
  uint32_t end_qpn() const { return kFirstQpn + manager_.queue_pairs(); }

  Config config_;
  BoardManager manager_;
  std::vector<BoardQueuePair> queue_pairs_;
  std::vector<uint32_t> peers_;
  uint32_t next_qp_ = 0;         // index of the queue pair that sends next
  Instant link_free_at_{0};      // when all packets sent so far have left
  bool waits_for_link_ = false;  // packets wait until the link is free
  std::optional<MasterTask> master_task_;
  uint32_t streams_to_open_ = 0;
  std::deque<uint32_t> master_task_qps_;  // the task's open queue pairs
  BoardQpCounters past_;                  // of closed connections
  Counters counters_;
  std::deque<std::string> lines_;
};

}  // namespace verbena::daq
