// Host: an engine with its completion queues, turned by the World. It takes the place of a lane of
// src/runtime. Several hosts may be lanes of one Process; otherwise a host is a process of its own.
// Each has its own place on the network, which stands for a slot.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/engine.h"
#include "sim/arena.h"
#include "sim/connection.h"
#include "sim/network.h"
#include "sim/process.h"
#include "sim/shared_memory.h"

namespace verbena::sim {

class World;

struct QpShape {
  uint32_t depth = 16;  // of both queues
  uint32_t sges = 4;
  uint32_t max_inline = 256;
  bool signal_all = false;
  core::QpType type = core::QpType::Rc;
  core::SharedReceiveQueue* srq = nullptr;
  uint32_t xrc_domain = 0;
};

class Host {
 public:
  Host(World& world, HostId id, Process& process, uint64_t secret, bool extensions);

  HostId id() const { return id_; }
  // All lanes of a process have one.
  wire::Gid gid() const { return Network::gid_of(process_.address()); }
  core::Engine& engine() { return engine_; }
  Process& process() { return process_; }
  Arena& arena() { return process_.arena(); }

  core::CompletionQueue& create_cq(uint32_t capacity);
  core::QueuePair& create_qp(core::CompletionQueue& send_cq, core::CompletionQueue& receive_cq,
                             const QpShape& shape);
  // Some regions are from now on memory that the CPU cannot access, such as a GPU's.
  void add_device_memory() { has_device_memory_ = true; }
  // Registers a guarded region of the arena; peers and SGEs address it from the returned iova.
  Region add_region(uint64_t length, uint32_t access);
  DurableRegion add_durable_region(uint32_t access);

  // Verbs calls, each followed by a turn.
  Status post_send(core::QueuePair& qp, const core::SendRequest& request);
  Status post_receive(core::QueuePair& qp, const core::ReceiveRequest& request);
  Status post_receive(core::SharedReceiveQueue& srq, const core::ReceiveRequest& request) {
    return srq.post(request);
  }
  void modify(core::QueuePair& qp, const core::QpAttributes& attr, uint32_t mask);
  void to_error(core::QueuePair& qp);
  void destroy(core::QueuePair& qp);
  // The largest payload of a packet to this peer if it exceeds the path MTU; else 0.
  uint32_t packet_bytes(const Host& peer) const;

  // Packets wait for the next turn. A paused host takes no turns.
  // `marked`: with an ECN mark.
  void deliver(Bytes packet, HostId from, const wire::Gid& destination, bool marked);
  // The IP header fields of a packet from `from`.
  static wire::RxMeta addressing(const Host& from, const wire::Gid& destination);
  void set_paused(bool paused);
  // The link through memory to this peer has ended.
  void on_link_end(HostId peer);
  // The number of packets that one turn may send; small values make many short turns.
  void set_packets_per_turn(size_t packets) { packets_per_turn_ = packets; }
  // Delays ACKs by up to `max_turns` turns, so that requests may piggyback them.
  void set_ack_delay(uint32_t max_turns) { max_delayed_turns_ = max_turns; }

  void turn();
  void wake();  // schedules a turn

  std::vector<core::AsyncEvent> events;  // moved here after each turn
  std::vector<core::QpFailure> failures;
  uint64_t turns = 0;

 private:
  class Sink;
  struct Arrived {
    Bytes bytes;
    wire::RxMeta meta;
  };
  wire::RxPacket to_rx_packet(const Arrived& arrived) const;
  bool take_from_memory(size_t max_records);
  void wake_readers();

  World& world_;
  HostId id_;
  Process& process_;
  bool has_device_memory_ = false;
  ExposedMemory exposed_;
  core::Engine engine_;
  std::vector<std::unique_ptr<core::CompletionQueue>> cqs_;
  std::deque<Arrived> arrived_;
  size_t packets_per_turn_ = 64;
  uint32_t max_delayed_turns_ = 0;
  uint32_t delayed_turns_ = 0;
  bool paused_ = false;
  bool turn_scheduled_ = false;
  Instant armed_ = kNever;
};

// Takes two fresh queue pairs to RTS, connected to each other.
void connect(Host& a, core::QueuePair& qa, Host& b, core::QueuePair& qb,
             const ConnectionShape& shape);
// Takes a fresh UD queue pair to RTS.
void open_for_datagrams(Host& host, core::QueuePair& qp, uint32_t qkey, uint32_t psn);

}  // namespace verbena::sim
