// One stream of a receiver: a queue pair, its receive memory and its summary.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/time.h"
#include "os/unique_fd.h"
#include "tools/daq/plan.h"
#include "tools/daq/recv.h"
#include "tools/daq/verbs_device.h"

namespace verbena::daqtool {

class Stream {
 public:
  Stream(const VerbsDevice& device, const ReceiveOptions& options, const Plan& plan,
         uint32_t index);

  // Creates a queue pair and posts all receives. Returns the data that the peer needs.
  daq::QpInfo prepare(ibv_cq* cq);
  void connect(const daq::QpInfo& peer);
  // Destroys the queue pair; outstanding receives are discarded.
  void disconnect();

  // A receive has completed. False: the connection failed; summary().trouble has the reason.
  bool on_completion(const ibv_wc& completion, Instant now);
  // Checks the messages that the consumer is done with and posts their receives again. False: as
  // above.
  bool consume(Instant now);
  Instant next_consumption() const { return pending_.empty() ? kNever : pending_.front().ready; }

  // All requested messages have arrived, and the dump has them.
  bool is_complete() const { return requested_ != 0 && !dump_failed_ && messages_left() == 0; }
  uint64_t messages_left() const {
    const uint64_t resolved = summary_.messages + summary_.lost;
    return requested_ - std::min(requested_, resolved);
  }
  uint32_t posted() const { return outstanding_; }
  Instant last_activity() const { return last_activity_; }
  StreamSummary& summary() { return summary_; }
  const StreamSummary& summary() const { return summary_; }

 private:
  struct Message {  // received
    uint64_t offset = 0;
    uint32_t bytes = 0;
    Instant ready{0};  // when the consumer is done with it
  };
  void post(uint32_t count);
  void check(const Message& message);
  void open_dump(const std::string& name);
  bool write_dump();
  bool write_all(std::vector<iovec> parts);

  const VerbsDevice& device_;
  const ReceiveOptions& options_;
  const uint32_t index_;
  const uint64_t requested_;  // messages; 0: the peer decides
  const uint32_t receives_;
  const bool checks_;
  Memory memory_;
  std::optional<QueuePair> qp_;
  std::vector<ibv_recv_wr> requests_;
  std::vector<ibv_sge> buffers_;
  uint32_t next_buffer_ = 0;  // SEND: index of the buffer for the next receive
  uint32_t outstanding_ = 0;
  uint64_t write_offset_ = 0;  // WRITE: offset of the next message
  uint32_t next_word_ = 0;     // of the generator's pattern
  std::deque<Message> pending_;
  Instant consumer_free_at_{0};
  Instant last_activity_{0};
  os::UniqueFd dump_;
  bool dump_direct_ = false;
  bool dump_failed_ = false;
  std::vector<Message> to_dump_;
  uint64_t dumped_ = 0;  // bytes
  StreamSummary summary_;
};

}  // namespace verbena::daqtool
