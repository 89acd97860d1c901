// DatagramSocket: an rsocket of type SOCK_DGRAM.
//
// It has an ordinary UDP socket, whose address is its own, and a UD queue pair for each local
// address that it sends from. The first datagrams to a peer go through UDP, with a header that
// contains our queue pair number. The peer replies with its own number, and later datagrams go from
// queue pair to queue pair. Datagrams that are too long for that continue to go through UDP.
//
// The service thread reads the UDP socket and resolves the paths to the peers' queue pairs.
#pragma once

#include <rdma/rdma_cma.h>

#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "rsocket/datagram_endpoint.h"
#include "rsocket/settings.h"
#include "rsocket/socket.h"

namespace verbena::rsocket {

class DatagramSocket final : public Socket {
 public:
  // Creates a socket, adds it to the table and returns its number.
  static Result<int> create(int family, int file_flags, int descriptor_flags);
  ~DatagramSocket() override;

  Status bind(const SocketAddress& address) override;
  Status connect(const SocketAddress& address) override;
  Status disconnect() override;
  Status shutdown(int how) override;
  Result<size_t> send(Buffers& from, const Transfer& transfer) override;
  Result<size_t> receive(Buffers& to, Transfer& transfer) override;
  Result<SocketAddress> name() override;
  Result<SocketAddress> peer_name() override;
  Status set_option(int level, int option, const void* value, socklen_t size) override;
  Status get_option(int level, int option, void* value, socklen_t* size) override;
  void flush(Duration timeout) override;
  void close() override;

  void on_ready(int descriptor) override;

 private:
  // A host that we have exchanged datagrams with. Addresses are never in mapped form here.
  struct Peer {
    DatagramEndpoint* endpoint = nullptr;  // our endpoint for this peer
    ibv_ah* path = nullptr;                // null: use UDP
    uint32_t qpn = 0;
    Instant last_received;            // time of the last datagram from it
    Instant last_request;             // time of the last datagram to it that requires a reply
    rdma_cm_id* resolving = nullptr;  // resolves the path...
    uint32_t resolving_qpn = 0;       // ...to this queue pair
  };
  using Peers = std::unordered_map<SocketAddress, Peer, SocketAddressHash>;

  // A datagram for the application: in a slot of its endpoint or, if it was received through UDP,
  // here.
  struct Message {
    SocketAddress source;
    DatagramEndpoint* endpoint = nullptr;
    DatagramEndpoint::ReceivedDatagram received{};
    std::vector<std::byte> bytes;
    std::span<const std::byte> payload() const { return endpoint ? received.payload : bytes; }
  };

  DatagramSocket(int family, int udp) : Socket(udp), family_(family), udp_(udp) {}

  void progress() override;
  bool arm() override;
  void drain_events() override;
  short readiness() const override;
  void add_descriptors(std::vector<pollfd>* to) const override;

  // All of these require the lock.
  Status start();
  Result<Peer*> peer_for(const SocketAddress& address);
  Result<SocketAddress> local_address_for(const SocketAddress& peer);
  Result<DatagramEndpoint*> endpoint_for(const SocketAddress& local);
  void evict_peer_if_full();
  void release(Peer& peer);
  bool through_queue_pair(const Peer& peer, size_t size) const;
  Status send_through_udp(const Peer& peer, const SocketAddress& to, UdpHeader::Op op,
                          Buffers* from, int flags);
  bool wanted(const SocketAddress& source) const { return !connected_ || *connected_ == source; }
  void on_udp(std::span<const std::byte> datagram, const SocketAddress& source);
  void find_path(Peer& peer, const SocketAddress& address, uint32_t qpn);
  bool has_channel();
  void take_events();
  void on_event(rdma_cm_event_type type, rdma_cm_id* id);

  const int family_;
  const int udp_;  // also the socket's number
  Sizes sizes_ = Settings::get().sizes;
  bool started_ = false;
  rdma_event_channel* channel_ = nullptr;  // of all IDs
  std::vector<std::unique_ptr<DatagramEndpoint>> endpoints_;
  Peers peers_;
  std::unordered_map<rdma_cm_id*, SocketAddress> resolving_;
  std::optional<SocketAddress> connected_;
  int error_ = 0;  // reported by the next call
  bool read_open_ = true;
  bool write_open_ = true;
  std::deque<Message> inbox_;
  size_t udp_bytes_ = 0;  // bytes in the inbox received through UDP
  std::vector<DatagramEndpoint::ReceivedDatagram> received_;  // scratch memory of progress()
  std::vector<std::byte> udp_buffer_;                         // used by the service thread only
};

}  // namespace verbena::rsocket
