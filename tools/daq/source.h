// One stream of a sender: a queue pair, and the generator's messages under way on it.
#pragma once

#include <infiniband/verbs.h>

#include <optional>

#include "base/time.h"
#include "daq/message.h"
#include "tools/daq/send.h"
#include "tools/daq/verbs_device.h"

namespace verbena::daqtool {

class Source {
 public:
  Source(const VerbsDevice& device, const SendOptions& options, ibv_cq* cq, uint32_t index);

  uint32_t number() const { return qp_.number(); }
  daq::QpInfo local() const;
  void connect(const daq::QpInfo& peer, ibv_mtu mtu);
  // What to send. False: it is busy with the last orders. Throws Trouble where there is no memory.
  bool begin(const daq::Transmit& orders, Instant now);

  // Posts what is due and has room.
  void post(Instant now);
  void on_completion();

  bool busy() const { return left_ != 0 || under_way_ != 0; }
  uint64_t messages() const { return done_; }
  uint64_t bytes() const { return done_bytes_; }

 private:
  void post_one();

  const VerbsDevice& device_;
  const SendOptions& options_;
  const uint32_t index_;
  QueuePair qp_;
  daq::QpInfo peer_;
  std::optional<Memory> memory_;  // as many places as messages may be under way
  daq::Transmit orders_;
  uint64_t left_ = 0;  // to be posted
  Instant due_{0};
  Duration gap_{};
  uint32_t next_place_ = 0;
  uint32_t next_word_ = 0;
  uint64_t offset_ = 0;
  uint32_t under_way_ = 0;
  uint64_t done_ = 0;
  uint64_t done_bytes_ = 0;
};

}  // namespace verbena::daqtool
