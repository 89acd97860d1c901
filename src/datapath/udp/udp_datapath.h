// The datapath that is on the wire: RoCEv2 over unprivileged UDP sockets. It finds out the IP
// header's fields that the ICRC covers, cuts and joins batches (GSO, GRO), and hands packets that
// belong to another process of this host to that process.
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
  // `interface_index` is the device's network interface: the scope of link-local addresses, and
  // where its segmentation is looked up. The directory must outlive the datapath.
  UdpDatapath(uint32_t interface_index, host::SlotDirectory& directory,
              const UdpOptions& options = {});
  ~UdpDatapath() override;
  UdpDatapath(const UdpDatapath&) = delete;
  UdpDatapath& operator=(const UdpDatapath&) = delete;

  // Opens the sockets of a local address without a path, so that packets arrive: for a device whose
  // peers speak first. Harmless when it is open already.
  Status listen(const wire::Gid& source);

  // Every packet for this process comes straight to it, as far as is known. Until then some come
  // through other processes, and may be overtaken by those that do not.
  bool settled() const;

  // Joins a multicast group on the device's interface: what is sent to it arrives from now on.
  Status join(const wire::Gid& group);
  void leave(const wire::Gid& group);

  // Nobody calls receive() from now on until wait_fd() says that something is there.
  void rest();
  void report_ip_headers() override;
  Result<wire::PathId> open_path(const wire::Route& route) override;
  void close_path(wire::PathId path) override;
  std::span<const wire::RxPacket> receive() override;
  bool pending() const override;
  wire::PacketSink& sink() override;
  void flush() override;
  int wait_fd() const override;
  void append_counters(std::vector<Counter>& to) const override;

  // Hosts that nothing gets to, because they are not there or nobody has port 4791 there: kernels
  // say so, and while they are heard take_unreachable_host() tells.
  void report_unreachable_hosts(bool on);
  std::optional<UnreachableHost> take_unreachable_host();

  // What the directory's services are has changed: the kernel and the other processes are told.
  void update_services();

  // When poll_directory() has something to do though nothing has arrived.
  Instant deadline() const;

  // Passes a packet, without its ICRC, on to another process of this host: to the one with a slot,
  // to all that are known, or to the first of these services that somebody has. To all of them it
  // never waits, and goes at a limited rate: anybody on the network can ask for it.
  host::Forwarded forward(uint8_t slot, std::span<const std::byte> packet,
                          const wire::RxMeta& meta);
  void forward_to_everyone(std::span<const std::byte> packet, const wire::RxMeta& meta);
  host::Forwarded forward(std::span<const host::ServiceName> services,
                          std::span<const std::byte> packet, const wire::RxMeta& meta);

  // Reads the slot directory now instead of at some next receive(); call it when wait_fd() woke
  // you. What it brings is returned by the next receive().
  void poll_directory();

  // At most one sentence per second that the owner should log, for example that the path carries
  // only smaller packets than the caller sends.
  std::optional<std::string> take_warning();

 private:
  // A REJ that nobody's id is in is rare: a peer gave up before it had an answer. One that is lost
  // costs the process with the connection its own time-out, nothing more.
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
  std::vector<std::unique_ptr<UdpEndpoint>> endpoints_;  // of groups left, some are closed
  std::vector<std::unique_ptr<UdpPath>> paths_;          // by PathId; null when closed
  std::vector<uint32_t> free_paths_;
  std::unique_ptr<UdpReceiver> receiver_;
  std::unique_ptr<UdpSender> sender_;
};

}  // namespace verbena::datapath
