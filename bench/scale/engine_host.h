// EngineHost: the shipped engine as an application of ns-3. Packets and their traffic class go
// through a UDP socket of ns-3, deadlines through its scheduler. It takes the place of a lane of
// src/runtime and of sim/host.h. A host of ns-3 needs no time for its work.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/engine.h"
#include "ns3/application.h"
#include "ns3/event-id.h"
#include "ns3/ipv4-address.h"
#include "ns3/queue-disc.h"
#include "ns3/socket.h"
#include "sim/connection.h"

namespace verbena::scale {

// Memory that all hosts read from and write to, so that a host needs none of its own.
class SharedBuffers {
 public:
  static constexpr uint32_t kBytes = 1 << 20;  // of a message at most
  std::byte* source() { return source_.data(); }
  std::byte* target() { return target_.data(); }

 private:
  std::vector<std::byte> source_{kBytes, std::byte{0x5A}};
  std::vector<std::byte> target_{kBytes};
};

class EngineHost : public ns3::Application {
 public:
  static ns3::TypeId GetTypeId();
  static constexpr uint16_t kPort = 4791;
  // A send buffer of the kernel's default size: packets beyond it wait in the engine.
  static constexpr uint32_t kSendBufferBytes = 208 * 1024;

  struct Shape {
    ns3::Ipv4Address address;
    uint64_t seed = 0;
    const core::CongestionAlgorithm* congestion = &core::kDefaultCongestionAlgorithm;
    ns3::Ptr<ns3::QueueDisc> queue;  // of its port
  };
  using OnCompletion = std::function<void(const core::Completion&)>;
  // After the node has its Internet stack.
  void open(const Shape& shape, SharedBuffers& buffers, OnCompletion on_completion);

  core::QueuePair& create_qp(uint32_t max_send, uint32_t max_receive);
  // Takes `qp` to RTS.
  void connect(core::QueuePair& qp, const EngineHost& peer, const core::QueuePair& peer_qp,
               const sim::ConnectionShape& shape);
  void destroy(core::QueuePair& qp);
  void post_receive(core::QueuePair& qp);
  // Posts WRITEs of `bytes` in total to the shared memory at `peer`. The last has an immediate, so
  // that the peer's program gets a completion; both ends' completions have the wr_id of their
  // queue pair.
  void write(core::QueuePair& qp, const EngineHost& peer, uint64_t bytes);
  static uint32_t writes_for(uint64_t bytes);

  const core::Counters& counters() { return engine_->state().counters; }
  // The time of this machine that calls into the engine took.
  std::chrono::nanoseconds engine_time() const { return engine_time_; }
  static wire::Gid gid_of(ns3::Ipv4Address address);

 private:
  class Sink;
  template <typename Call>
  auto timed(Call call);
  void on_readable(ns3::Ptr<ns3::Socket> socket);
  void on_packet(const ns3::Packet& packet, ns3::Ipv4Address source);
  void on_dequeue(ns3::Ptr<const ns3::QueueDiscItem>);
  void send(const wire::TxPacket& packet);
  size_t room() const;
  void turn();
  void take_completions();
  void arm();

  Shape shape_;
  wire::Gid gid_;
  OnCompletion on_completion_;
  std::unique_ptr<core::Engine> engine_;
  std::unique_ptr<core::CompletionQueue> cq_;
  ns3::Ptr<ns3::Socket> socket_;
  uint32_t source_lkey_ = 0;
  uint32_t target_rkey_ = 0;
  uint64_t source_iova_ = 0;
  uint64_t target_iova_ = 0;
  bool in_turn_ = false;
  bool is_blocked_ = false;  // the send buffer is full
  Instant armed_ = kNever;
  ns3::EventId deadline_;
  std::chrono::nanoseconds engine_time_{};
};

}  // namespace verbena::scale
