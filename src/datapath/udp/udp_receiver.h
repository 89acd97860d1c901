// The receiving half: takes batches from the sockets, cuts them, checks every packet's ICRC and
// slot, and passes on what belongs to another process.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "datapath/udp/udp_endpoint.h"
#include "datapath/udp/udp_options.h"
#include "host/slot_directory.h"
#include "wire/packet_io.h"

namespace verbena::datapath {

class UdpReceiver {
 public:
  // Everything given must outlive it. `epoll_fd` watches the endpoints' receive sockets, each with
  // its number among `endpoints` as data.
  UdpReceiver(const std::vector<std::unique_ptr<UdpEndpoint>>& endpoints, int epoll_fd,
              host::SlotDirectory& directory, host::Mailbox& mailbox, UdpCounters& counters,
              const UdpOptions& options);
  ~UdpReceiver();

  // What epoll says when the directory rather than an endpoint has something.
  static constexpr uint64_t kDirectoryReady = UINT64_MAX;

  std::span<const wire::RxPacket> receive();
  void poll_directory();
  bool pending() const { return !strays_arrived_.empty(); }

 private:
  struct Messages;

  void read_directory();
  UdpEndpoint* ready_endpoint();
  void read(UdpEndpoint& endpoint);
  void take_train(UdpEndpoint& endpoint, size_t message);
  void cut(UdpEndpoint& endpoint, std::span<std::byte> batch, size_t stride, uint16_t source_port,
           const wire::RxMeta& meta);
  void forward(UdpEndpoint& endpoint, uint8_t slot, std::span<const std::byte> bytes, size_t stride,
               const wire::RxMeta& meta);
  void accept(std::span<const std::byte> datagram, const wire::RxMeta& meta);
  void hand_out_strays();
  bool is_ours(uint8_t slot) const;
  bool may_be_forwarded(wire::Qpn to) const;
  bool sent_by_us(const wire::Gid& source, uint16_t port) const;

  const std::vector<std::unique_ptr<UdpEndpoint>>& endpoints_;
  const int epoll_fd_;
  host::SlotDirectory& directory_;
  host::Mailbox& mailbox_;
  UdpCounters& counters_;
  const UdpOptions options_;

  std::unique_ptr<Messages> messages_;
  size_t trains_asked_ = 1;
  wire::IcrcVerifier verifier_{{}};                     // of the flow that came last
  std::vector<wire::RxPacket> packets_;                 // what the last receive() returned
  std::vector<host::MisroutedPackets> strays_held_;     // what some of them point into
  std::vector<host::MisroutedPackets> strays_arrived_;  // for the next receive()
  std::vector<host::MemberReport> reports_;
  uint32_t calls_ = 0;
  uint32_t attentive_ = 0;  // calls during which the directory is looked at every time
};

}  // namespace verbena::datapath
