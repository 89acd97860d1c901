// verbena perf: one connection by rdma_cm with its memory and queues. Either side has one.
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

// Something went wrong; what() tells a person.
struct ToolError : std::runtime_error {
  using runtime_error::runtime_error;
};

using Clock = std::chrono::steady_clock;
inline constexpr std::chrono::seconds kPatience{10};  // for the other side to do something

using Channel = Owned<rdma_event_channel, rdma_destroy_event_channel>;
using Id = Owned<rdma_cm_id, rdma_destroy_id>;
using Event = Owned<rdma_cm_event, rdma_ack_cm_event>;

Channel open_channel();

// The next event, or null if none comes in time. Negative: wait for ever.
Event next_event(const Channel& channel, std::chrono::milliseconds limit);

// "rdma_listen: Address already in use"
std::string with_errno(const std::string& what);

class Connection {
 public:
  static constexpr uint32_t kSendDepth = 128;
  static constexpr uint32_t kReceiveDepth = 512;
  static constexpr uint32_t kReadDepth = 16;

  // Makes the queue pair of an id that knows its device. `look_around` is called every now and then
  // while something is waited for, and throws if there is no point in waiting any longer.
  Connection(rdma_cm_id* id, std::function<void()> look_around);
  ~Connection() { rdma_disconnect(id_); }  // fails where the other side was faster
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // What the other side has to know; and what it told us.
  Hello greeting() const;
  void meet(const Hello& other) { remote_ = other; }

  // Three areas of kMaxMessage bytes: SENDs arrive in the first, WRITEs in the second, and what is
  // sent lies in the third. READs bring their data to the first.
  std::byte* received() { return memory_.data(); }
  std::byte* target() { return memory_.data() + kMaxMessage; }
  std::byte* outgoing() { return memory_.data() + size_t{2} * kMaxMessage; }

  // Posts one request, waiting for room in the queue. Requests up to the next signalled one are
  // retired together with it.
  void post(ibv_wr_opcode opcode, uint32_t size, bool signal);
  // Waits until everything posted is done; the last one was signalled.
  void drain();

  // Spins until a SEND has arrived, and makes room for another.
  void await_message();
  // The same, sleeping without using the CPU, for as long as it takes.
  void sleep_until_message();
  // Spins until the last of `size` bytes of the target area is `value`.
  void await_mark(uint32_t size, uint8_t value);

  // A message of the protocol, and the next one to arrive.
  void send_command(const Command& command);
  Command received_command();

 private:
  class Patience;
  void post_receive();
  bool take_message();
  void reap(Patience& patience);

  rdma_cm_id* id_;
  std::function<void()> look_around_;
  std::vector<std::byte> memory_;
  Owned<ibv_comp_channel, ibv_destroy_comp_channel> completions_;
  Owned<ibv_cq, ibv_destroy_cq> send_cq_;
  Owned<ibv_cq, ibv_destroy_cq> receive_cq_;
  Owned<rdma_cm_id, rdma_destroy_qp> queue_pair_;  // which belongs to the id
  Owned<ibv_mr, ibv_dereg_mr> mr_;
  Hello remote_;
  uint32_t under_way_ = 0;        // posted and not retired
  uint32_t since_signalled_ = 0;  // of these, posted after the last signalled one
};

}  // namespace verbena::perf
