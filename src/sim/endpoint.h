// Endpoint: one end of a reliable connection, RC or XRC. It models the effect of each request on
// the peer's memory and checks it at the completion. The engine is compared with this naive model:
// one map of memory, instant delivery, everything in order.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/actor.h"
#include "sim/receive_pool.h"
#include "sim/scatter_gather.h"

namespace verbena::sim {

// A word that several endpoints fetch-and-add to. Each adds 1, so every value must be returned
// once.
struct SharedCounter {
  Region region;
  HostId host = 0;
  std::set<uint64_t> seen;
  uint64_t added = 0;
};

// The kind of reliable connection, and the source of its receives.
struct EndpointKind {
  bool xrc = false;
  // Shared receive queues; each XRC message names one. Empty: its own receive queue.
  std::vector<ReceivePool*> shared;
  Host* receiver = nullptr;  // XRC: the lane of the receiving queue pair
};

class Endpoint final : public Actor {
 public:
  static constexpr uint32_t kXrcDomain = 1;
  static constexpr uint32_t kWindowHalf = 2048;  // half of a window's bytes

  Endpoint(World& world, Host& host, core::CompletionQueue& cq, const WorkloadShape& shape,
           Report& report, const EndpointKind& kind);

  void set_peer(Endpoint& peer, SharedCounter* counter_at_peer);
  // The queue pairs for its own requests and for the peer's. RC has one for both.
  core::QueuePair& qp() { return qp_; }
  core::QueuePair& inbound_qp() { return inbound_qp_; }

  bool owns(wire::Qpn qpn) const override { return qpn == qp_.qpn() || qpn == inbound_qp_.qpn(); }
  void work() override;
  void fill_receives() override;
  void on_completion(const core::Completion& completion) override;
  bool done() const override {
    return posted_ >= shape_.requests && requests_.empty() && inbound_.empty();
  }
  std::string describe() const override;
  void check() override;
  void stop() override;
  std::string check_stopped() const override {
    return own_receives_ ? own_receives_->check_stopped() : "";
  }

 private:
  struct Request {
    uint64_t wr_id = 0;
    core::SendOp op{};
    bool signaled = false;
    std::vector<core::Sge> sges;
    Bytes message;        // data to send, or expected from a READ
    int local_slot = -1;  // freed at completion
    int remote_slot = -1;
    bool check_remote = false;  // WRITE to a slot of its own
    bool shared_counter = false;
    bool through_window = false;
    uint64_t durable = 0;  // FLUSH: the lowest value that must be persistent
  };
  // A message that the peer has posted and that must consume the next receive here.
  struct Inbound {
    core::SendOp op{};
    Bytes message;
    uint32_t immediate_or_rkey = 0;
    uint32_t srqn = 0;  // XRC: the shared receive queue that it must use
  };
  // The window through which the peer may access window_area_ while it is bound.
  struct Window {
    enum State : uint8_t { Unbound, Binding, Bound, Ending } state = Unbound;
    core::WindowType type = core::WindowType::Type2;
    uint32_t key = 0;
    uint64_t begin = 0;  // of the bound range in the area
    uint64_t base = 0;   // the peer's address of it
    uint32_t uses = 0;   // outstanding requests of the peer
  };

  void post_one();
  bool choose_send(Request& r, core::SendRequest& s);
  bool choose_write(Request& r, core::SendRequest& s);
  bool choose_read(Request& r, core::SendRequest& s);
  bool choose_atomic(Request& r, core::SendRequest& s);
  bool choose_durable(Request& r, core::SendRequest& s);
  bool choose_window(Request& r, core::SendRequest& s);
  void bind_window(Request& r, core::SendRequest& s);
  bool use_window(Request& r, core::SendRequest& s, uint64_t offset);
  void fill_message(Request& r, core::SendRequest& s, uint32_t length);
  uint32_t random_length();
  void finish(Request& r, const core::Completion* completion);
  void on_send_completion(const core::Completion& c);
  void on_receive_completion(const core::Completion& c);

  core::QueuePair& qp_;
  Host& inbound_host_;
  core::QueuePair& inbound_qp_;
  std::unique_ptr<ReceivePool> own_receives_;
  std::vector<ReceivePool*> receives_;
  Endpoint* peer_ = nullptr;

  Region local_;           // slots to send from and read into
  Region slots_region_;    // slots that the peer writes to
  Region hot_;             // one range that the peer overwrites repeatedly
  Region fixed_;           // the peer may only read it
  Region words_;           // [0] the peer's fetch-and-adds, [1] its compare-and-swaps
  DurableRegion durable_;  // the peer writes a counter to its first word
  Region window_area_;     // the first half is written, the second read
  Bytes fixed_model_;
  Bytes hot_model_;
  Bytes window_model_;
  uint64_t word_model_[2] = {0, 0};
  uint64_t durable_model_ = 0;
  uint64_t flushes_ = 0;
  Window window_;
  SharedCounter* counter_ = nullptr;

  std::deque<Request> requests_;
  std::deque<Inbound> inbound_;
  std::vector<int> free_local_;
  std::vector<int> free_remote_;  // of the peer's slots
  uint32_t posted_ = 0;
  uint32_t since_signaled_ = 0;
  uint64_t next_wr_id_ = 1;
  bool stopped_ = false;
};

}  // namespace verbena::sim
