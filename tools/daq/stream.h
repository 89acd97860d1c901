// One stream of a receiver: a queue pair, the memory that messages arrive in, and the books.
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/time.h"
#include "datapath/udp/unique_fd.h"
#include "tools/daq/recv.h"
#include "tools/daq/verbs_device.h"

namespace verbena::daqtool {

// How many receives a stream can have posted. A WRITE may begin before its receive is looked for,
// so with data to be checked one message more than that must find room before offsets wrap.
uint32_t receives_for(const ReceiveOptions& options, const VerbsDevice& device);
// Whether what arrives stays long enough to be looked at.
bool can_check(const ReceiveOptions& options);

class Stream {
 public:
  Stream(const VerbsDevice& device, const ReceiveOptions& options, uint32_t index);

  // A new queue pair with all receives posted: what the other end has to know.
  daq::QpInfo prepare(ibv_cq* cq);
  void connect(const daq::QpInfo& peer, ibv_mtu mtu);
  // The queue pair goes, and with it what it still held.
  void disconnect();

  // A receive is done. False: the connection has failed; summary().trouble says how.
  bool on_completion(const ibv_wc& completion, Instant now);
  // Looks at what the consumer is done with, and posts the receives again.
  void consume(Instant now);
  Instant next_consumption() const { return pending_.empty() ? kNever : pending_.front().ready; }

  bool has_all() const {
    return options_.messages != 0 && summary_.messages + summary_.lost >= options_.messages;
  }
  uint64_t left() const { return options_.messages - summary_.messages - summary_.lost; }
  uint32_t posted() const { return outstanding_; }
  Instant heard_at() const { return heard_at_; }
  StreamSummary& summary() { return summary_; }
  const StreamSummary& summary() const { return summary_; }

 private:
  struct Message {  // arrived
    uint64_t offset;
    uint32_t bytes;
    Instant ready;  // when the consumer is done with it
  };
  void post(uint32_t count);
  void check(const Message& message);
  void open_dump();
  void write_dump();

  const VerbsDevice& device_;
  const ReceiveOptions& options_;
  const uint32_t index_;
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
  datapath::UniqueFd dump_;
  bool dump_direct_ = false;
  std::vector<Message> to_dump_;
  StreamSummary summary_;
};

}  // namespace verbena::daqtool
