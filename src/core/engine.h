// Engine: the NIC as a pure state machine. Packets in, time in, packets out, next deadline out. It
// reads no clock, opens no socket, starts no thread and makes no callbacks: its reports are in
// state(), which the owner reads after each turn. Not thread-safe: one owner at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/time.h"
#include "core/management_port.h"
#include "core/multicast_groups.h"
#include "core/qp_table.h"
#include "core/queue_pair.h"

namespace verbena::core {

struct EngineConfig {
  uint8_t slot = 1;     // the top byte of every QPN of this engine
  uint64_t secret = 0;  // keys derive from it
  // Shared with other engines; null: the engine has one of its own.
  MemoryRegistry* memory = nullptr;
  uint32_t max_qps = 1u << 16;
  bool extensions = true;  // use the extensions (core/ext) with other Verbenas
  bool fast_path = true;   // false: only the normal path, with the same result
  const CongestionAlgorithm* congestion = &kDefaultCongestionAlgorithm;
};

class Engine {
 public:
  explicit Engine(const EngineConfig& config);
  ~Engine();

  // --- packets and time -------------------------------------------------------------------------
  // The kinds of packets received, by which the owner decides whether an ACK may be delayed.
  struct Arrivals {
    bool messages : 1 = false;       // SEND and WRITE: they need at most an ACK
    bool receives : 1 = false;       // some of them consume a receive
    bool responses_due : 1 = false;  // READ, atomic or MAD: a response leaves at once
    bool responses : 1 = false;

    void add(const Arrivals& others) {
      messages |= others.messages;
      receives |= others.receives;
      responses_due |= others.responses_due;
      responses |= others.responses;
    }
  };
  Arrivals on_packets(std::span<const wire::RxPacket> packets, Instant now);
  void on_deadline(Instant now);  // spurious calls are harmless
  // Round robin over the queue pairs that have something to send, until the sink is full. True if
  // packets are left to send.
  bool poll_transmit(wire::PacketSink& sink, Instant now);
  // Its fast path in two steps, so that the caller can read its clock after the packet has left.
  // Null: nothing has changed. `recent`: any earlier time.
  QueuePair* try_fast_send(wire::PacketSink& sink, Instant recent);
  void finish_fast_send(QueuePair& qp, Instant now);
  Instant next_deadline();
  // Not later than next_deadline(), and cheaper: for a loop that polls.
  Instant earliest_deadline() const { return deadlines_.empty() ? kNever : deadlines_.front().at; }
  bool anything_to_send() const { return !ready_.empty() || management_.anything_to_send(); }
  // Only responses are ready, no requests and no MADs.
  bool only_responses_to_send(Instant now) const;

  // --- objects ----------------------------------------------------------------------------------
  Result<QueuePair*> create_qp(const QpConfig& config);
  void destroy_qp(QueuePair* qp, Instant now);
  QueuePair* find(wire::Qpn qpn);  // null: none
  // Check with QueuePair::check_modify() first; the path in `attr` must be open.
  void modify_qp(QueuePair& qp, const QpAttributes& attr, uint32_t mask, Instant now);
  // Paths that no longer take large packets use the path MTU from now on, instead of QpAttributes'
  // path_packet_bytes. Outstanding requests with larger packets fail.
  void revert_paths_to_mtu(const std::function<bool(wire::PathId)>& takes_large_packets,
                           Instant now);
  // Fails the queue pairs of every completion queue that lost a completion. The owner calls it when
  // another engine has overrun a queue that both use.
  [[gnu::cold, gnu::noinline]] void fail_overrun(Instant now);
  // Every queue pair that is not in RESET goes to ERROR.
  void fail_all(Instant now);
  Status post_send(QueuePair& qp, const SendRequest& request, Instant now) {
    return post_send(qp, {&request, 1}, now);
  }
  // Posts all of them or, if one is invalid, none.
  Status post_send(QueuePair& qp, std::span<const SendRequest> requests, Instant now);
  Status post_receive(QueuePair& qp, const ReceiveRequest& request, Instant now);
  // There are at most 2^24 - 1 numbers; the owner has a lower limit.
  SharedReceiveQueue* create_srq(const SrqConfig& config);
  // See SharedReceiveQueue::modify().
  Status modify_srq(SharedReceiveQueue& srq, std::optional<uint32_t> max_wr,
                    std::optional<uint32_t> limit);
  // No queue pair was created with it. XRC queue pairs refuse the rest of a message that used it.
  void destroy_srq(SharedReceiveQueue* srq);
  // kbps 0: no limit.
  void set_rate_limit(QueuePair& qp, uint32_t kbps, uint32_t burst_bytes, Instant now);
  // Multicast: a datagram to `group` is delivered to every UD queue pair attached to it, except the
  // sender. Attaching twice has no further effect. The owner joins and leaves the group itself.
  Status attach(QueuePair& qp, const wire::Gid& group);
  Status detach(QueuePair& qp, const wire::Gid& group);
  // Groups that `qp` is attached to.
  std::vector<wire::Gid> groups_of(const QueuePair& qp) const { return groups_.groups_of(qp); }
  bool has_members(const wire::Gid& group) const { return groups_.has_members(group); }
  size_t qp_count() const { return qps_.size(); }
  size_t pending_deadlines() const { return deadlines_.size(); }  // stale ones included

  // Nothing is in flight to the peer of `qp`, so a new request should leave at once.
  bool peer_idle(const QueuePair& qp) const { return qp.peer() == nullptr || qp.peer()->is_idle(); }

  // Memory regions, and queue pairs that are created from now on, are exposed there. Null: nowhere.
  void expose_through(wire::Exposure* exposure);

  MemoryRegistry& memory() { return state_.memory.registry(); }
  ManagementPort& management() { return management_; }
  EngineState& state() { return state_; }

 private:
  struct DeadlineEntry {
    Instant at;
    wire::Qpn qpn;
    uint64_t serial;  // tells a later queue pair with the same number apart
    bool operator>(const DeadlineEntry& other) const { return at > other.at; }
  };

  QueuePair* qp_of(const DeadlineEntry& entry);  // null: the entry is stale
  Arrivals on_batch(std::span<const wire::RxPacket> packets, Instant now);
  // Packets at the front of a batch.
  struct RunResult {
    size_t handled = 0;
    size_t refused = 0;
  };
  RunResult on_run(QueuePair& qp, const wire::Packet& first,
                   std::span<const wire::RxPacket> packets, Instant now);
  wire::Packet* parse(const wire::RxPacket& rx);
  bool on_management(const wire::Packet& packet, const wire::RxPacket& rx);
  void on_cnp(const wire::Packet& packet, const wire::RxMeta& meta, Instant now);
  void on_multicast(wire::Packet& packet, const wire::RxMeta& meta, Instant now);
  [[gnu::noinline]] void after_change(QueuePair& qp, Instant now, bool wait_at_front = false);
  void wake_waiting(PeerPath& peer, Instant now);
  bool try_fast_receive(const wire::RxPacket& rx, Instant now, Arrivals& arrivals);
  bool fast_send(QueuePair& qp, wire::PacketSink& sink, Instant recent);
  bool end_reservation(QueuePair& qp);
  void make_ready(QueuePair& qp);
  [[gnu::noinline]] void drop_served();
  void transmit(QueuePair& qp, wire::PacketSink& sink, Instant now, bool only_active_qp);
  void schedule(QueuePair& qp) {
    const Instant at = qp.deadline();
    // A later deadline needs no entry: the old entry is rescheduled when it is due.
    if (at < qp.scheduling.heap_deadline) [[unlikely]]
      bring_forward(qp, at);
  }
  [[gnu::noinline]] void bring_forward(QueuePair& qp, Instant at);
  void sweep_deadlines();
  PeerPath* acquire_peer(const QpAttributes& attr);
  void release_peer(QueuePair& qp, Instant now);
  void release_peer(PeerPath& peer, Instant now);
  void reserve_lists(size_t qps);
  // The most entries of so many queue pairs in the heap, stale ones included.
  static constexpr size_t max_deadlines(size_t qps) { return 4 * qps + 64; }
  void drop_from_lists(QueuePair& qp);

  EngineConfig config_;
  std::unique_ptr<MemoryRegistry> own_memory_;  // null: config_.memory
  EngineState state_;
  ManagementPort management_{state_};
  wire::Packet packet_;     // scratch memory of parse()
  wire::Packet short_ack_;  // the same for an ACK without headers
  QpTable qps_;
  uint32_t next_index_;  // the first to try for a new queue pair
  uint64_t last_serial_ = 0;
  uint32_t last_srq_;
  std::vector<QueuePair*> ready_;  // a ring by index: [ready_head_, end)
  size_t ready_head_ = 0;
  std::vector<DeadlineEntry> deadlines_;  // a min-heap, entries may be stale
  std::map<std::pair<wire::Gid, uint8_t>, std::unique_ptr<PeerPath>> peers_;
  MulticastGroups groups_;
};

}  // namespace verbena::core
