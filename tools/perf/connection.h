// verbena perf: one connection with its memory and queues, on either side.
#pragma once

#include <rdma/rdma_cma.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/owned.h"
#include "tools/perf/protocol.h"

namespace verbena::perf {

// A failure that ends the command; what() is the sentence for the user.
struct ToolError : std::runtime_error {
  using runtime_error::runtime_error;
};

using Clock = std::chrono::steady_clock;
inline constexpr std::chrono::seconds kPeerTimeout{10};  // without progress of the other side

using Channel = Owned<rdma_event_channel, rdma_destroy_event_channel>;
using Id = Owned<rdma_cm_id, rdma_destroy_id>;
using Event = Owned<rdma_cm_event, rdma_ack_cm_event>;

Channel open_channel();

// The next event, or null after `limit`. A negative limit waits forever.
Event next_event(const Channel& channel, std::chrono::milliseconds limit);

// "rdma_listen: Address already in use"
std::string with_errno(const std::string& what);

class Connection {
 public:
  static constexpr uint32_t kSendDepth = 128;
  static constexpr uint32_t kReceiveDepth = 512;
  static constexpr uint32_t kReadDepth = 16;

  // Creates the queue pair of an id that is bound to a device. The connection calls `check_events`
  // periodically while it waits; `check_events` throws if the wait cannot succeed.
  Connection(rdma_cm_id* id, std::function<void()> check_events);
  ~Connection() { rdma_disconnect(id_); }  // fails if the other side disconnected first
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The handshake to send to the other side, and the one received from it.
  Handshake local_handshake() const;
  void set_remote(const Handshake& other) { remote_ = other; }

  // Three areas of kMaxMessage bytes: the first receives SENDs and READ data, the second receives
  // WRITEs, the third holds outgoing data.
  std::byte* received() { return memory_.data(); }
  std::byte* target() { return memory_.data() + kMaxMessage; }
  std::byte* outgoing() { return memory_.data() + size_t{2} * kMaxMessage; }

  // Posts one request; waits while the send queue is full. Requests up to the next signalled one
  // are retired together with it.
  void post(ibv_wr_opcode opcode, uint32_t size, bool signal);
  // Waits until all posted requests are complete; the last one must be signalled.
  void drain();

  // Busy-polls until a SEND arrives, and posts its receive again.
  void await_message();
  // As await_message(), but sleeps and has no time limit.
  void sleep_until_message();
  // Busy-polls until the last of `size` bytes of the target area is `value`.
  void await_byte(uint32_t size, uint8_t value);

  // Send a command, and decode the command received last.
  void send_command(const Command& command);
  Command received_command();

 private:
  class WaitGuard;
  void post_receive();
  bool poll_message();
  void poll_sends(WaitGuard& guard);

  rdma_cm_id* id_;
  std::function<void()> check_events_;
  std::vector<std::byte> memory_;
  Owned<ibv_comp_channel, ibv_destroy_comp_channel> completions_;
  Owned<ibv_cq, ibv_destroy_cq> send_cq_;
  Owned<ibv_cq, ibv_destroy_cq> receive_cq_;
  Owned<rdma_cm_id, rdma_destroy_qp> queue_pair_;  // owned by the id
  Owned<ibv_mr, ibv_dereg_mr> mr_;
  Handshake remote_;
  uint32_t in_flight_ = 0;        // posted and not retired
  uint32_t since_signalled_ = 0;  // of these, the ones posted after the last signalled request
};

}  // namespace verbena::perf
