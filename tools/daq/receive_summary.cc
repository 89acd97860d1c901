// The summary of a receiver, as text and as JSON.
#include <fmt/core.h>

#include <algorithm>

#include "daq/board.h"
#include "tools/daq/recv.h"

namespace verbena::daqtool {
namespace {

std::string json_of(const StreamSummary& s) {
  std::string gaps;
  for (const Gap& gap : s.gaps) {
    gaps += fmt::format("{}[{}, {}]", gaps.empty() ? "" : ", ", gap.at_message, gap.lost);
  }
  return fmt::format(
      "{{\"board\": \"{}\", \"qp\": {}, \"board_qp\": {}, \"messages\": {}, \"bytes\": {}, "
      "\"packets\": {}, \"wrong\": {}, \"lost\": {}, \"missing\": {}, \"starved\": {}, "
      "\"connections\": {}, \"trouble\": \"{}\", \"gaps\": [{}]}}",
      daq::print_ip(s.board), s.queue_pair, s.board_queue_pair, s.messages, s.bytes, s.packets,
      s.wrong_messages, s.lost, s.missing, s.starved, s.connections, s.trouble, gaps);
}

std::string json_of(const std::optional<NicCounters>& nic) {
  if (!nic) return "null";
  return fmt::format("{{\"rnr_naks_sent\": {}, \"repeated\": {}, \"out_of_order\": {}}}",
                     nic->rnr_naks_sent, nic->repeated, nic->out_of_order);
}

}  // namespace

uint64_t ReceiveSummary::messages() const {
  uint64_t sum = 0;
  for (const StreamSummary& s : streams) sum += s.messages;
  return sum;
}
uint64_t ReceiveSummary::bytes() const {
  uint64_t sum = 0;
  for (const StreamSummary& s : streams) sum += s.bytes;
  return sum;
}
double ReceiveSummary::gbps() const {
  return seconds > 0 ? static_cast<double>(bytes()) * 8 / seconds / 1e9 : 0;
}
bool ReceiveSummary::good() const {
  return std::ranges::all_of(streams, [](const StreamSummary& s) {
    return s.connections > 0 && s.wrong_messages == 0 && s.missing == 0 && s.trouble.empty();
  });
}

std::string to_json(const ReceiveSummary& summary) {
  std::string streams;
  for (const StreamSummary& s : summary.streams) {
    streams += (streams.empty() ? "\n " : ",\n ") + json_of(s);
  }
  return fmt::format(
      "{{\"device\": \"{}\", \"seconds\": {:.6f}, \"cpu_seconds\": {:.6f}, \"messages\": {}, "
      "\"bytes\": {}, \"gbps\": {:.4f}, \"receives\": {}, \"sleeps\": {}, \"good\": {}, "
      "\"nic\": {}, \"streams\": [{}\n]}}\n",
      summary.device, summary.seconds, summary.cpu_seconds, summary.messages(), summary.bytes(),
      summary.gbps(), summary.receives, summary.sleeps, summary.good(), json_of(summary.nic),
      streams);
}

std::string to_text(const ReceiveSummary& summary) {
  std::string text;
  for (size_t i = 0; i < summary.streams.size(); ++i) {
    const StreamSummary& s = summary.streams[i];
    text += fmt::format(
        "stream {}: {} messages, {} bytes, {} packets; {} wrong, {} lost by the board, {} missing; "
        "{} times no receive was left{}{}\n",
        i, s.messages, s.bytes, s.packets, s.wrong_messages, s.lost, s.missing, s.starved,
        s.connections > 1 ? fmt::format("; {} connections", s.connections) : "",
        s.trouble.empty() ? "" : "; " + s.trouble);
  }
  if (summary.nic) {
    text +=
        fmt::format("{}: {} RNR NAKs sent, {} duplicate packets, {} out of order\n", summary.device,
                    summary.nic->rnr_naks_sent, summary.nic->repeated, summary.nic->out_of_order);
  }
  return text +
         fmt::format(
             "{} messages, {} bytes in {:.3f} s: {:.3f} Gb/s, {:.0f} messages/s, {:.0f} % "
             "CPU\n",
             summary.messages(), summary.bytes(), summary.seconds, summary.gbps(),
             summary.seconds > 0 ? static_cast<double>(summary.messages()) / summary.seconds : 0,
             summary.seconds > 0 ? summary.cpu_seconds / summary.seconds * 100 : 0);
}

}  // namespace verbena::daqtool
