// verbena recv: receives what boards send, and keeps the books.
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
  std::vector<uint32_t> boards;  // to be asked; none: boards ask us
  uint32_t ip = 0;               // ours; 0: the one that reaches the first board
  uint16_t cm_port = daq::kHostPort;
  uint32_t streams = 1;  // queue pairs for each board; of all, where boards ask
  daq::TransferKind op = daq::TransferKind::Write;
  uint32_t message_bytes = 5120;
  uint32_t receives = 0;          // posted for each stream; 0: as many as are sensible
  uint64_t messages = 10000;      // to be asked of each stream; 0: none are asked for
  uint32_t gap_cycles = 0;        // between them
  uint64_t wrap_bytes = 1 << 24;  // where offsets of WRITEs begin again, as on the board
  uint32_t mtu = 0;               // 0: the device's
  Poll poll = Poll::Hybrid;
  uint32_t spin_us = 10;     // hybrid: awake for so long without a message
  int numa_node = -1;        // to run on
  bool check = true;         // the data
  uint32_t consumer_us = 0;  // a consumer that needs so long for a message
  std::string dump;          // file, or the beginning of the names of files
  double seconds = 0;        // at most; 0: without end
  std::optional<double>
      silence_seconds;     // then a stream that has not all it asked for is given up;
                           // 0: never; unset: 3, or 60 where nothing was asked for
  bool reconnect = false;  // or asked for again
  bool screen = false;     // a live one, on a terminal
  bool quiet = false;
};

struct Gap {
  uint64_t at_message;  // of the stream
  uint64_t lost;        // messages
};

struct StreamSummary {
  uint32_t board = 0;
  uint32_t queue_pair = 0;
  uint32_t board_queue_pair = 0;
  uint64_t messages = 0;
  uint64_t bytes = 0;
  uint64_t packets = 0;         // that these messages were, without repeats
  uint64_t wrong_messages = 0;  // data other than the generator's
  uint64_t lost = 0;            // messages that the board made and could not send
  uint64_t missing = 0;         // messages that were asked for and never came
  uint64_t starved = 0;         // how often no receive was left: the board is told to wait
  uint64_t connections = 0;
  std::vector<Gap> gaps;  // where messages were lost, the first hundred
  std::string trouble;    // why it ended before its time
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
  bool good() const;  // nothing wrong, nothing missing
};

// Runs until all is received, the time is up or a signal came. `line` gets what a person should
// know.
ReceiveSummary receive(const ReceiveOptions& options,
                       const std::function<void(const std::string&)>& line);

std::string to_json(const ReceiveSummary& summary);
std::string to_text(const ReceiveSummary& summary);

}  // namespace verbena::daqtool
