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
#include "datapath/registry.h"
#include "datapath/udp/udp_options.h"
#include "datapath/udp/udp_socket.h"
#include "datapath/wire_datapath.h"
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

class UdpDatapath final : public WireDatapath {
 public:
  // `interface_index` is the device's network interface: the scope of link-local addresses, and the
  // interface whose segmentation is queried. The directory must outlive the datapath.
  UdpDatapath(uint32_t interface_index, host::SlotDirectory& directory,
              const UdpOptions& options = {});
  ~UdpDatapath() override;
  UdpDatapath(const UdpDatapath&) = delete;
  UdpDatapath& operator=(const UdpDatapath&) = delete;

  // For the registry (registry.cc).
  static Result<std::unique_ptr<WireDatapath>> open_wire(const WireOptions& options,
                                                         host::SlotDirectory& directory);

  Status listen(const wire::Gid& source) override;
  // The kernel steers every packet for this lane to it, as far as is known.
  bool is_ready() const override;
  Status join(const wire::Gid& group) override;
  void leave(const wire::Gid& group) override;
  void prepare_to_sleep() override;
  void report_ip_headers() override;
  Result<wire::PathId> open_path(const wire::Route& route) override;
  void close_path(wire::PathId path) override;
  std::span<const wire::RxPacket> receive() override;
  bool pending() const override;
  wire::PacketSink& sink() override;
  void flush() override;
  int wait_fd() const override;
  void append_counters(std::vector<Counter>& to) const override;
  // The information comes from ICMP errors.
  void report_unreachable_hosts(bool on) override;
  std::optional<UnreachableHost> take_unreachable_host() override;
  // Updates the kernel's steering program, too.
  void update_services() override;
  Instant deadline() const override;
  host::Forwarded forward(uint8_t slot, std::span<const std::byte> packet,
                          const wire::RxMeta& meta) override;
  void forward_to_everyone(std::span<const std::byte> packet, const wire::RxMeta& meta) override;
  host::Forwarded forward(std::span<const host::ServiceName> services,
                          std::span<const std::byte> packet, const wire::RxMeta& meta) override;
  void poll_directory() override;
  std::optional<std::string> take_warning() override;

 private:
  // A REJ without a communication ID of this host is rare: the peer gave up before it received a
  // response. If such a REJ is lost, the connection ends by its own timeout.
  static constexpr uint32_t kMaxBroadcasts = 100;
  static constexpr Duration kBroadcastInterval = milliseconds(10);

  Result<UdpEndpoint*> endpoint_of(const wire::Gid& source);
  void report_unreachable_hosts(UdpEndpoint& endpoint);
  static void report_ip_headers(UdpEndpoint& endpoint);
  static void report_traffic_class(UdpEndpoint& endpoint);
  host::Steering* steering_of(const wire::Gid& address);
  host::Forwarded count_forwarded(host::Forwarded outcome, const wire::RxMeta& meta);
  UdpEndpoint* group_endpoint(const wire::Gid& group);

  const uint32_t interface_index_;
  host::SlotDirectory& directory_;
  const UdpOptions options_;
  std::unique_ptr<UdpCounters> counters_;
  TokenBucket broadcasts_{kMaxBroadcasts, kBroadcastInterval};
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
