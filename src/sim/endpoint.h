// Endpoint: one queue pair's application in the simulator. It posts random work, knows what each
// request must do to the peer's memory, and checks it when the completion arrives. It is the naive
// model that the engine is compared with: one map of memory, instant delivery, everything in order.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "sim/pieces.h"
#include "sim/report.h"
#include "sim/world.h"

namespace verbena::sim {

// What the queue pairs of one run have in common.
struct WorkloadShape {
  QpShape qp;
  uint32_t max_message = 4096;
  uint32_t requests = 50;  // per endpoint
  bool windows = true;
  double late_receives =
      0.3;  // how often an endpoint does not refill its receive queue when it could
  // Off when somebody forges packets: then nothing but memory safety can be promised.
  bool strict = true;
};

// A word that several endpoints fetch-and-add to. Each adds 1, so every value must be seen once.
struct SharedCounter {
  Region region;
  HostId host = 0;
  std::set<uint64_t> seen;
  uint64_t added = 0;
};

class Endpoint {
 public:
  Endpoint(World& world, Host& host, core::CompletionQueue& cq, const WorkloadShape& shape,
           Report& report);

  void set_peer(Endpoint& peer, SharedCounter* counter_at_peer);
  Host& host() { return host_; }
  core::QueuePair& qp() { return qp_; }

  // Posts a few requests and receives, as the queues permit.
  void work();
  void fill_receive_queue();
  void on_completion(const core::Completion& completion);

  bool done() const { return posted_ >= shape_.requests && requests_.empty() && inbound_.empty(); }
  // Memory as the model has it; call when everything is done.
  void check_memory();
  std::string describe() const;

 private:
  struct Request {
    uint64_t wr_id = 0;
    core::SendOp op{};
    bool signaled = false;
    std::vector<core::Sge> sges;
    Bytes message;        // what is sent, or must have been read
    int local_slot = -1;  // given back when it is done
    int remote_slot = -1;
    bool check_remote = false;  // WRITE to a slot of its own
    bool shared_counter = false;
    uint32_t new_window_key = 0;
  };
  struct Receive {
    uint64_t wr_id = 0;
    int slot = 0;
    std::vector<core::Sge> sges;
  };
  // A message that the peer has posted and that must use up our next receive.
  struct Inbound {
    core::SendOp op{};
    Bytes message;
    uint32_t immediate_or_rkey = 0;
  };
  // Our type 2 window, through which the peer may reach window_area_ until it invalidates it.
  struct Window {
    enum State : uint8_t { Unbound, Binding, Bound, InUse, Invalidating } state = Unbound;
    uint32_t key = 0;
  };

  void post_one();
  bool choose_send(Request& r, core::SendRequest& s);
  bool choose_write(Request& r, core::SendRequest& s);
  bool choose_read(Request& r, core::SendRequest& s);
  bool choose_atomic(Request& r, core::SendRequest& s);
  bool choose_window(Request& r, core::SendRequest& s);
  void fill_message(Request& r, core::SendRequest& s, uint32_t length);
  uint32_t random_length();
  void finish(Request& r, const core::Completion* completion);
  void on_send_completion(const core::Completion& c);
  void on_receive_completion(const core::Completion& c);
  void problem(const std::string& what);

  World& world_;
  Host& host_;
  WorkloadShape shape_;
  Report& report_;
  core::QueuePair& qp_;
  Endpoint* peer_ = nullptr;

  Region local_;         // slots: what we send from and read into
  Region slots_region_;  // slots: what the peer writes to
  Region hot_;           // one range the peer overwrites again and again
  Region fixed_;         // the peer may only read it
  Region words_;         // [0] the peer's fetch-and-adds, [1] its compare-and-swaps
  Region receive_;       // slots: receive buffers
  Region window_area_;
  Bytes fixed_model_;
  Bytes hot_model_;
  Bytes window_model_;
  uint64_t word_model_[2] = {0, 0};
  Window window_;
  SharedCounter* counter_ = nullptr;

  std::deque<Request> requests_;
  std::deque<Receive> receives_;
  std::deque<Inbound> inbound_;
  std::vector<int> free_local_;
  std::vector<int> free_remote_;  // of the peer's slots
  std::vector<int> free_receive_;
  uint32_t posted_ = 0;
  uint32_t since_signaled_ = 0;
  uint64_t next_wr_id_ = 1;
};

}  // namespace verbena::sim
