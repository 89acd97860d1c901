// One stream of a sender: a queue pair and the generated messages in flight on it.
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
  // Starts a transfer. False: the previous one is still running. Throws ToolError if memory is
  // exhausted.
  bool begin(const daq::Transmit& command, Instant now);

  // Posts all messages that are due, up to the limit of messages in flight.
  void post(Instant now);
  void on_completion();

  bool busy() const { return to_post_ != 0 || in_flight_ != 0; }
  uint64_t messages() const { return completed_; }
  uint64_t bytes() const { return completed_bytes_; }

 private:
  void post_one();

  const VerbsDevice& device_;
  const SendOptions& options_;
  const uint32_t index_;
  QueuePair qp_;
  daq::QpInfo peer_;
  std::optional<Memory> memory_;  // one buffer per message in flight
  daq::Transmit command_;
  uint64_t to_post_ = 0;
  Instant due_{0};
  Duration gap_{};
  uint32_t next_buffer_ = 0;
  uint32_t next_word_ = 0;
  uint64_t offset_ = 0;
  uint32_t in_flight_ = 0;
  uint64_t completed_ = 0;
  uint64_t completed_bytes_ = 0;
};

}  // namespace verbena::daqtool
