// Capture: reads the RoCEv2 packets of a pcap or pcapng file, by libpcap.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "wire/identifiers.h"

struct pcap;

namespace verbena::explain {

struct Datagram {
  int64_t ns = 0;  // since the first packet of the file
  wire::Gid source;
  wire::Gid destination;
  uint8_t traffic_class = 0;
  bool is_whole = true;  // false: the capture has only its beginning
  bool icrc_is_good = true;
  size_t length = 0;                 // BTH to padding, as on the wire
  std::span<const std::byte> bytes;  // of it, as far as captured; valid until the next packet
};

class Capture {
 public:
  Capture() = default;
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // "-" is standard input. False: error() has the reason.
  bool open(const std::string& file);
  // The next RoCEv2 packet. False: the file ends, or cannot be read further (error()).
  bool next(Datagram& datagram);

  const std::string& error() const { return error_; }
  uint64_t other_packets() const { return other_packets_; }

 private:
  // What the ICRC covers in front of the BTH.
  struct Headers {
    std::vector<std::byte> ip_and_udp;
    size_t ip_bytes = 0;
    bool is_v4 = true;
  };

  std::span<const std::byte> ip_packet_of(std::span<const std::byte> frame) const;
  bool parse(std::span<const std::byte> ip, Datagram& datagram);
  bool has_good_icrc(std::span<const std::byte> datagram, uint32_t segment);
  void split(std::span<const std::byte> datagrams, Datagram& first);
  bool next_segment(Datagram& datagram);

  std::string error_;
  pcap* file_ = nullptr;
  int link_type_ = 0;
  int64_t first_ns_ = -1;
  uint64_t other_packets_ = 0;
  Headers headers_;
  std::vector<std::byte> masked_;  // headers and datagram as the ICRC covers them
  // The kernel hands batches of packets (GSO, GRO) to a capture as one packet.
  std::span<const std::byte> segments_;  // those that next() has not returned yet
  size_t stride_ = 0;                    // their size; the last one may be shorter
  uint32_t segment_ = 0;
};

}  // namespace verbena::explain
