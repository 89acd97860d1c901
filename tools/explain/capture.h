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
  std::span<const std::byte> bytes;  // BTH to padding; valid until the next packet
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
  std::span<const std::byte> ip_packet_of(std::span<const std::byte> frame) const;
  bool parse(std::span<const std::byte> ip, Datagram& datagram);

  std::string error_;
  pcap* file_ = nullptr;
  int link_type_ = 0;
  int64_t first_ns_ = -1;
  uint64_t other_packets_ = 0;
  std::vector<std::byte> masked_;  // headers and BTH as the ICRC covers them
};

}  // namespace verbena::explain
