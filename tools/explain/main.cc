// verbena explain: tells what happens in a capture of RoCEv2 packets.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
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

// Verbena's own datagrams, for instance those by which processes of one host find out where the
// kernel steers packets (host/steering.cc).
bool is_control(const Datagram& d) {
  constexpr std::byte kManufacturerSpecific{0xC0};  // from here on
  return d.bytes.size() >= 14 && d.bytes[0] >= kManufacturerSpecific &&
         d.bytes[12] == std::byte{'V'} && d.bytes[13] == std::byte{'B'};
}

uint32_t number_of(const std::string& text) {
  return static_cast<uint32_t>(std::stoul(text, nullptr, text.starts_with("0x") ? 16 : 10));
}

class Story {
 public:
  explicit Story(const Options& options)
      : options_(options), qpn_(options.qp.empty() ? kAnyQp : number_of(options.qp)) {}

  void tell(const Datagram& d) {
    ++packets_;
    wire::ParseError why{};
    const auto packet = wire::Packet::parse(d.bytes, &why);
    if (!packet && is_control(d)) {
      ++controls_;
      return;
    }
    if (!packet) {
      ++(d.is_whole ? invalid_ : cut_);
      if (!d.is_whole) return;
      return print(d, kAnyQp, fmt::format("not a RoCE packet: {}", reason_of(why)), "", true);
    }
    const uint32_t qpn = packet->bth.destination.value();
    if (!d.icrc_is_good) {  // it changes nothing at the receiver
      Stream& s = streams_.stream_of(d, qpn);
      ++s.packets;
      ++s.wrong_icrcs;
      if (wire::is_marked(d.traffic_class)) ++s.marked;
      Remarks remarks;
      remarks.payload_bytes = packet->payload.size();
      return print(d, qpn, sentence_of(*packet, remarks), remarks_of(d, {}), true);
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
    if (controls_ != 0) fmt::print("{} are Verbena's own control datagrams\n", controls_);
    if (invalid_ != 0) fmt::print("{} are not valid\n", invalid_);
    if (cut_ != 0) fmt::print("{} were captured without their headers\n", cut_);
    for (const Stream* const s : streams_.all()) {
      if (qpn_ != kAnyQp && s->id.qpn != qpn_) continue;
      fmt::print("{} \u2192 {} QP 0x{:06x}: {}, {} bytes{}\n", address_of(s->id.source),
                 address_of(s->id.destination), s->id.qpn, counted(s->packets, "packet"),
                 s->payload_bytes, troubles_of(*s));
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

  // Responses whose requests are not known may belong to it.
  bool may_have_responses(const Stream& s) const {
    return s.responses == nullptr && std::ranges::any_of(streams_.all(), [&](const Stream* other) {
             return other->has_responses && other->requests == nullptr &&
                    other->id.source == s.id.destination && other->id.destination == s.id.source;
           });
  }

  std::string troubles_of(const Stream& s) const {
    std::string text;
    const auto add = [&](uint64_t count, const char* noun, const char* behind = "") {
      if (count != 0) text += fmt::format(", {}{}", counted(count, noun), behind);
    };
    add(s.retransmitted, "retransmission");
    add(s.recovered, "retransmission", " without its first copy");
    add(s.missing.size(), "PSN", " missing");
    add(s.missing_responses, "response", " missing");
    add(s.naks, "NAK");
    add(s.rnr_naks, "RNR NAK");
    add(s.cnps, "CNP");
    add(s.marked, "packet", " marked CE");
    add(s.wrong_icrcs, "packet", " with a wrong ICRC");
    if (!s.is_reliable || !s.unacked) return text;
    if (s.refused) return text + fmt::format(", PSN {} was refused", (*s.refused).value());
    if ((*s.next).distance_from(*s.unacked) > 0 && !may_have_responses(s)) {
      text += fmt::format(", no response to PSN {}", (*s.unacked).value());
      if (*s.next != *s.unacked + 1) text += fmt::format(" to {}", (*s.next - 1).value());
    }
    return text;
  }

  const Options options_;
  const uint32_t qpn_;
  Streams streams_;
  uint64_t packets_ = 0;
  uint64_t controls_ = 0;
  uint64_t invalid_ = 0;
  uint64_t cut_ = 0;
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
    const int base = text.starts_with("0x") ? 16 : 10;
    if (std::stoul(text, &used, base) <= 0xFFFFFF && used == text.size()) return "";
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
      "  tcpdump -U -i eth0 -w - udp port 4791 | verbena explain -\n"
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
