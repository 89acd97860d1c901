// verbena send: sends as a board does, by verbs; the software counterpart of verbena recv.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "daq/message.h"

namespace verbena::daqtool {

struct SendOptions {
  uint32_t receiver = 0;  // to connect to; 0: receivers connect and request data
  uint16_t receiver_port = daq::kHostPort;
  uint32_t ip = 0;  // of this host; 0: the address that reaches the receiver
  uint16_t cm_port = daq::kBoardPort;
  uint32_t streams = 1;
  daq::TransferKind op = daq::TransferKind::Write;
  uint32_t message_bytes = 5120;
  uint64_t messages = 10000;  // per stream
  uint32_t gap_cycles = 0;    // between two messages
  uint32_t inflight = 32;     // requests in flight per stream
  uint64_t wrap_bytes = 1 << 24;
  uint32_t mtu = 0;
  double seconds = 0;  // 0: no limit
};

struct SendSummary {
  std::string device;
  uint64_t wanted = 0;  // messages to send, by the options or by the receivers' requests
  uint64_t messages = 0;
  uint64_t bytes = 0;
  double seconds = 0;  // from the first message to the last
};

// Throws ToolError if the receiver refuses, does not respond, or rejects a message.
SendSummary send(const SendOptions& options, const std::function<void(const std::string&)>& line);

}  // namespace verbena::daqtool
