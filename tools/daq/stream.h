// One stream of a receiver: a queue pair, the memory that messages arrive in, and the books.
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

  // A new queue pair with all receives posted: what the other end has to know.
  daq::QpInfo prepare(ibv_cq* cq);
  void connect(const daq::QpInfo& peer);
  // The queue pair goes, and with it what it still held.
  void disconnect();

  // A receive is done. False: the connection has failed; summary().trouble says how.
  bool on_completion(const ibv_wc& completion, Instant now);
  // Looks at what the consumer is done with, and posts the receives again. False: as above.
  bool consume(Instant now);
  Instant next_consumption() const { return pending_.empty() ? kNever : pending_.front().ready; }

  // All that the board was asked for is here, and is safe.
  bool has_all() const { return asked_ != 0 && !dump_failed_ && left() == 0; }
  uint64_t left() const {
    const uint64_t settled = summary_.messages + summary_.lost;
    return asked_ - std::min(asked_, settled);
  }
  uint32_t posted() const { return outstanding_; }
  Instant heard_at() const { return heard_at_; }
  StreamSummary& summary() { return summary_; }
  const StreamSummary& summary() const { return summary_; }

 private:
  struct Message {  // arrived
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
  const uint64_t asked_;  // messages; 0: the other end decides
  const uint32_t receives_;
  const bool checks_;
  Memory memory_;
  std::optional<QueuePair> qp_;
  std::vector<ibv_recv_wr> requests_;
  std::vector<ibv_sge> rooms_;
  uint32_t next_slot_ = 0;  // SEND: which room the next receive posted gets
  uint32_t outstanding_ = 0;
  uint64_t write_offset_ = 0;  // WRITE: where the next message lies
  uint32_t next_word_ = 0;     // of the generator's pattern
  std::deque<Message> pending_;
  Instant consumer_free_at_{0};
  Instant heard_at_{0};
  os::UniqueFd dump_;
  bool dump_direct_ = false;
  bool dump_failed_ = false;
  std::vector<Message> to_dump_;
  uint64_t dumped_ = 0;  // bytes
  StreamSummary summary_;
};

}  // namespace verbena::daqtool
