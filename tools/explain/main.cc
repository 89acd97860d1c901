// verbena explain: tells what happens in a capture of RoCEv2 packets.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "tools/explain/sentences.h"
#include "tools/explain/streams.h"
#include "tools/standard_output.h"
#include "wire/traffic_class.h"

namespace verbena::explain {
namespace {

struct Options {
  std::string file;
  std::string qp;
  bool errors = false;
  bool summary = false;
};

const char* reason_of(wire::ParseError error) {
  switch (error) {
    case wire::ParseError::TooShort:
      return "too short for its opcode";
    case wire::ParseError::UnknownOpcode:
      return "unknown opcode";
    case wire::ParseError::BadVersion:
      return "unknown version of the transport header";
    case wire::ParseError::BadPadding:
      return "invalid padding";
  }
  return "invalid";
}

class Story {
 public:
  explicit Story(const Options& options)
      : options_(options),
        qpn_(options.qp.empty() ? kAnyQp
                                : static_cast<uint32_t>(std::stoul(options.qp, nullptr, 0))) {}

  void tell(const Datagram& d) {
    ++packets_;
    wire::ParseError why{};
    const auto packet = wire::Packet::parse(d.bytes, &why);
    if (!packet) {
      if (!d.is_whole) return;
      ++invalid_;
      return print(d, kAnyQp, fmt::format("not a RoCE packet: {}", reason_of(why)), "", true);
    }
    const uint32_t qpn = packet->bth.destination.value();
    if (!d.icrc_is_good) {  // it changes nothing at the receiver
      Stream& s = streams_.stream_of(d, qpn);
      ++s.packets;
      ++s.wrong_icrcs;
      return print(d, qpn, sentence_of(*packet, {}), remarks_of(d, {}), true);
    }
    Stream* stream = nullptr;
    const Remarks remarks = streams_.add(d, *packet, stream);
    if (wire::is_marked(d.traffic_class)) ++stream->marked;
    if (options_.summary) return;
    const std::string remark = remarks_of(d, remarks);
    const bool trouble = !remark.empty() || is_trouble(*packet);
    if (options_.errors && !trouble) return;
    print(d, qpn, sentence_of(*packet, remarks), remark, trouble);
  }

  void sum_up(const Capture& capture) const {
    fmt::print("{}{} RoCEv2 packets, {} others\n", options_.summary ? "" : "\n", packets_,
               capture.other_packets());
    if (invalid_ != 0) fmt::print("{} packets are not valid\n", invalid_);
    for (const Stream* const s : streams_.all()) {
      if (qpn_ != kAnyQp && s->id.qpn != qpn_) continue;
      fmt::print("{} \u2192 {} QP 0x{:06x}: {} packets, {} bytes{}\n", address_of(s->id.source),
                 address_of(s->id.destination), s->id.qpn, s->packets, s->payload_bytes,
                 troubles_of(*s));
    }
  }

 private:
  static constexpr uint32_t kAnyQp = UINT32_MAX;

  void print(const Datagram& d, uint32_t qpn, const std::string& text, const std::string& remark,
             bool trouble) const {
    if (options_.summary || (qpn_ != kAnyQp && qpn != qpn_)) return;
    fmt::print("{:12.6f} {} {} \u2192 {}{} {}{}\n", static_cast<double>(d.ns) / 1e9,
               trouble ? '!' : ' ', address_of(d.source), address_of(d.destination),
               qpn == kAnyQp ? "" : fmt::format(" QP 0x{:06x}", qpn), text,
               remark.empty() ? "" : "  [" + remark + "]");
  }

  static std::string troubles_of(const Stream& s) {
    std::string text;
    const auto add = [&](uint64_t count, const char* what) {
      if (count != 0) text += fmt::format(", {} {}", count, what);
    };
    add(s.retransmitted, "retransmitted");
    add(s.missing.size(), "PSNs missing");
    add(s.naks, "NAKs");
    add(s.rnr_naks, "RNR NAKs");
    add(s.cnps, "CNPs");
    add(s.marked, "marked CE");
    add(s.wrong_icrcs, "with a wrong ICRC");
    if (s.is_reliable && s.unacked && (*s.next).distance_from(*s.unacked) > 0) {
      text += fmt::format(", no response to PSN {}", (*s.unacked).value());
      if (*s.next != *s.unacked + 1) text += fmt::format(" to {}", (*s.next - 1).value());
    }
    return text;
  }

  const Options options_;
  const uint32_t qpn_;
  Streams streams_;
  uint64_t packets_ = 0;
  uint64_t invalid_ = 0;
};

int explain(const Options& options) {
  Capture capture;
  if (!capture.open(options.file)) {
    fmt::print(stderr, "verbena explain: {}: {}\n", options.file, capture.error());
    return 1;
  }
  Story story(options);
  for (Datagram d; capture.next(d);) story.tell(d);
  story.sum_up(capture);
  if (capture.error().empty()) return 0;
  fmt::print(stderr, "verbena explain: {}: the rest cannot be read: {}\n", options.file,
             capture.error());
  return 1;
}

std::string qp_error(const std::string& text) {
  size_t used = 0;
  try {
    if (std::stoul(text, &used, 0) <= 0xFFFFFF && used == text.size()) return "";
  } catch (const std::exception&) {
  }
  return "a QP number is at most 0xffffff, decimal or hexadecimal: " + text;
}

int main(int argc, char** argv) {
  CLI::App app("Tell what happens in a capture of RoCEv2 packets, one line for each packet.",
               "verbena explain");
  app.footer(
      "\nThe file may come from `verbena run --pcap`, tcpdump, dumpcap or Wireshark (pcap or "
      "pcapng;\n"
      "Ethernet, Linux cooked or raw IP). A line has the time in seconds, '!' if something is "
      "wrong,\n"
      "both hosts, the queue pair that the packet is for, and what the packet says. At the end "
      "there\n"
      "is a line for each direction with what went wrong.\n"
      "\nExamples:\n"
      "  verbena run --pcap /tmp/a.pcap --faults loss=0.01,seed=7 -- ib_send_bw 127.0.0.1\n"
      "  verbena explain /tmp/a.pcap\n"
      "  verbena explain --errors /tmp/a.pcap       only what went wrong\n"
      "  verbena explain --qp 0x12 /tmp/a.pcap      only packets for QP 0x12\n"
      "  tcpdump -i eth0 -w - udp port 4791 | verbena explain -\n"
      "\nExit status: 0 if the whole file was read, 1 if not, 2 if the command line is wrong.");
  Options options;
  app.add_option("FILE", options.file, "The capture; - is standard input")
      ->type_name("")
      ->required();
  app.add_option("--qp", options.qp, "Only packets for this queue pair number")
      ->type_name("QPN")
      ->check(CLI::Validator(qp_error, ""));
  app.add_flag("--errors", options.errors,
               "Only what is wrong: NAKs, retransmissions, gaps, marks, wrong ICRCs");
  app.add_flag("--summary", options.summary, "Only the lines at the end");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "verbena explain: {}\nTry: verbena explain --help\n", error.what());
    return 2;
  }
  return explain(options);
}

}  // namespace
}  // namespace verbena::explain

int main(int argc, char** argv) {
  return verbena::checking_standard_output("verbena explain",
                                           [&] { return verbena::explain::main(argc, argv); });
}
