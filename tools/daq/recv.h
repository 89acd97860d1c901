// verbena recv: receives data from boards, checks it and counts it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daq/message.h"
#include "tools/daq/nic_counters.h"

namespace verbena::daqtool {

enum class Poll : uint8_t { Busy, Event, Hybrid };

struct ReceiveOptions {
  std::vector<uint32_t> boards;  // to connect to; none: boards connect to this host
  uint32_t ip = 0;               // of this host; 0: the address that reaches the first board
  uint16_t cm_port = daq::kHostPort;
  uint32_t streams = 1;  // queue pairs per board; in total if boards connect
  daq::TransferKind op = daq::TransferKind::Write;
  uint32_t message_bytes = 5120;
  uint32_t receives = 0;          // posted per stream; 0: a default by message size
  uint64_t messages = 10000;      // to request per stream; 0: no request
  uint32_t gap_cycles = 0;        // between two messages
  uint64_t wrap_bytes = 1 << 24;  // offsets of WRITEs wrap here, as on the board
  uint32_t mtu = 0;               // 0: the device's
  Poll poll = Poll::Hybrid;
  uint32_t spin_us = 10;                  // hybrid: busy-poll for this time without a message
  int numa_node = -1;                     // to run on; -1: any
  bool check = true;                      // check the data
  uint32_t consumer_us = 0;               // emulates a consumer that needs this time per message
  std::string dump;                       // file name, or the common start of several names
  double seconds = 0;                     // 0: no limit
  std::optional<double> silence_seconds;  // a stream that is incomplete ends after this silence; 0:
                                          // never; unset: 3, or 60 if nothing was requested
  bool reconnect = false;                 // reconnect to such a stream's board
  bool screen = false;                    // live screen on a terminal
  bool quiet = false;
};

struct Gap {
  uint64_t at_message;  // index in the stream
  uint64_t lost;        // number of messages
};

struct StreamSummary {
  uint32_t board = 0;
  uint32_t queue_pair = 0;
  uint32_t board_queue_pair = 0;
  uint64_t messages = 0;
  uint64_t bytes = 0;
  uint64_t packets = 0;         // of these messages, without retransmits
  uint64_t wrong_messages = 0;  // data differ from the generator's
  uint64_t lost = 0;            // messages that the board generated and dropped
  uint64_t missing = 0;         // messages that were requested and did not arrive
  uint64_t starved = 0;         // how often no receive was left, so that the board had to wait
  uint64_t connections = 0;
  std::vector<Gap> gaps;  // the first hundred places where messages were lost
  std::string trouble;    // reason for a premature end
};

struct ReceiveSummary {
  std::vector<StreamSummary> streams;
  double seconds = 0;      // from the first message to the last
  double cpu_seconds = 0;  // of this process in that time
  uint64_t sleeps = 0;
  uint32_t receives = 0;  // posted for each stream
  std::string device;
  std::optional<NicCounters> nic;

  uint64_t messages() const;
  uint64_t bytes() const;
  double gbps() const;
  bool good() const;  // all data complete and correct
};

// Runs until everything is received, the time is up or a signal arrives. `line` gets the log lines.
ReceiveSummary receive(const ReceiveOptions& options,
                       const std::function<void(const std::string&)>& line);

std::string to_json(const ReceiveSummary& summary);
std::string to_text(const ReceiveSummary& summary);

}  // namespace verbena::daqtool
