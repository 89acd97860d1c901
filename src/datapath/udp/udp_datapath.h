// The UDP datapath: RoCEv2 over unprivileged UDP sockets. It computes the ICRC without seeing the
// IP header, sends and receives batches (GSO, GRO), and forwards misrouted packets.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/token_bucket.h"
#include "datapath/datapath.h"
#include "datapath/udp/udp_options.h"
#include "datapath/udp/udp_socket.h"
#include "host/slot_directory.h"

namespace verbena::host {
class Steering;
}

namespace verbena::datapath {

struct UdpEndpoint;
struct UdpPath;
struct UdpCounters;
class UdpReceiver;
class UdpSender;

class UdpDatapath final : public Datapath {
 public:
  // `interface_index` is the device's network interface: the scope of link-local addresses, and the
  // interface whose segmentation is queried. The directory must outlive the datapath.
  UdpDatapath(uint32_t interface_index, host::SlotDirectory& directory,
              const UdpOptions& options = {});
  ~UdpDatapath() override;
  UdpDatapath(const UdpDatapath&) = delete;
  UdpDatapath& operator=(const UdpDatapath&) = delete;

  // Opens the sockets of a local address without a path, so that it receives packets before it
  // sends any. Has no effect if they are open.
  Status listen(const wire::Gid& source);

  // The kernel steers every packet for this process to it, as far as is known. Until then other
  // processes forward some, and later packets may overtake those.
  bool is_ready() const;

  // Joins a multicast group on the device's interface.
  Status join(const wire::Gid& group);
  void leave(const wire::Gid& group);

  // The owner does not call receive() again until wait_fd() is readable.
  void prepare_to_sleep();
  void report_ip_headers() override;
  Result<wire::PathId> open_path(const wire::Route& route) override;
  void close_path(wire::PathId path) override;
  std::span<const wire::RxPacket> receive() override;
  bool pending() const override;
  wire::PacketSink& sink() override;
  void flush() override;
  int wait_fd() const override;
  void append_counters(std::vector<Counter>& to) const override;

  // While on, take_unreachable_host() returns hosts that packets do not reach, because the host
  // does not exist or no process has port 4791 there. The information comes from ICMP errors.
  void report_unreachable_hosts(bool on);
  std::optional<UnreachableHost> take_unreachable_host();

  // Called when the directory's services have changed. Updates the kernel's steering program and
  // reports the services to the other processes.
  void update_services();

  // When poll_directory() has work to do although nothing was received.
  Instant deadline() const;

  // Forwards a packet, without its ICRC, to another process of this host: to the one with that
  // slot, to all known ones, or to the first of these services that a process listens to.
  // Forwarding to all never waits and is rate-limited, because any host on the network can cause
  // it.
  host::Forwarded forward(uint8_t slot, std::span<const std::byte> packet,
                          const wire::RxMeta& meta);
  void forward_to_everyone(std::span<const std::byte> packet, const wire::RxMeta& meta);
  host::Forwarded forward(std::span<const host::ServiceName> services,
                          std::span<const std::byte> packet, const wire::RxMeta& meta);

  // Reads the slot directory now instead of in a later receive(). Call it after wait_fd() became
  // readable. The next receive() returns the packets.
  void poll_directory();

  // At most one sentence per second for the owner's log, for example that packets exceed the path's
  // MTU.
  std::optional<std::string> take_warning();

 private:
  // A REJ without a communication ID of this host is rare: the peer gave up before it received a
  // response. If such a REJ is lost, the connection ends by its own timeout.
  static constexpr uint32_t kMostBroadcasts = 100;
  static constexpr Duration kBroadcastInterval = milliseconds(10);

  Result<UdpEndpoint*> endpoint_of(const wire::Gid& source);
  void report_unreachable_hosts(UdpEndpoint& endpoint);
  static void report_ip_headers(UdpEndpoint& endpoint);
  host::Steering* steering_of(const wire::Gid& address);
  host::Forwarded count_forwarded(host::Forwarded outcome, const wire::RxMeta& meta);
  UdpEndpoint* group_endpoint(const wire::Gid& group);

  const uint32_t interface_index_;
  host::SlotDirectory& directory_;
  const UdpOptions options_;
  std::unique_ptr<UdpCounters> counters_;
  TokenBucket broadcasts_{kMostBroadcasts, kBroadcastInterval};
  os::UniqueFd epoll_;
  host::Mailbox mailbox_;
  bool reports_ip_headers_ = false;
  bool reports_unreachable_hosts_ = false;
  std::vector<std::unique_ptr<UdpEndpoint>> endpoints_;  // those of left groups are closed
  std::vector<std::unique_ptr<UdpPath>> paths_;          // by PathId; null when closed
  std::vector<uint32_t> free_paths_;
  std::unique_ptr<UdpReceiver> receiver_;
  std::unique_ptr<UdpSender> sender_;
};

}  // namespace verbena::datapath
