// The receiving half: reads GRO batches from the sockets, splits them, checks the ICRC and slot of
// every packet, and forwards misrouted packets.
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
  // The arguments must outlive the receiver. `epoll_fd` watches the endpoints' receive sockets; the
  // data of an event is the index in `endpoints`.
  UdpReceiver(const std::vector<std::unique_ptr<UdpEndpoint>>& endpoints, int epoll_fd,
              host::SlotDirectory& directory, host::Mailbox& mailbox, UdpCounters& counters,
              const UdpOptions& options);
  ~UdpReceiver();

  // The event data of the directory's descriptors.
  static constexpr uint64_t kDirectoryReady = UINT64_MAX;

  std::span<const wire::RxPacket> receive();
  void poll_directory();
  bool pending() const { return !misrouted_pending_.empty(); }

 private:
  struct Messages;

  void read_directory();
  UdpEndpoint* ready_endpoint();
  void read(UdpEndpoint& endpoint);
  void receive_batch(UdpEndpoint& endpoint, size_t message);
  void split(UdpEndpoint& endpoint, std::span<std::byte> batch, size_t stride, uint16_t source_port,
             const wire::RxMeta& meta);
  void forward(UdpEndpoint& endpoint, uint8_t slot, std::span<const std::byte> bytes, size_t stride,
               const wire::RxMeta& meta);
  void accept(std::span<const std::byte> datagram, const wire::RxMeta& meta);
  void deliver_misrouted();
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
  size_t batches_requested_ = 1;
  wire::IcrcVerifier verifier_{{}};                          // of the latest flow
  std::vector<wire::RxPacket> packets_;                      // returned by the last receive()
  std::vector<host::MisroutedPackets> misrouted_delivered_;  // some of packets_ point into these
  std::vector<host::MisroutedPackets> misrouted_pending_;    // for the next receive()
  std::vector<host::MemberReport> reports_;
  uint32_t calls_ = 0;
  uint32_t directory_polls_ = 0;  // the next calls poll the directory every time
};

}  // namespace verbena::datapath
