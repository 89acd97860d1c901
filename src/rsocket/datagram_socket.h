// DatagramSocket: an rsocket of type SOCK_DGRAM.
//
// It has an ordinary UDP socket, whose address is its own, and a UD queue pair for each local
// address it talks from. The first datagrams to a peer go through UDP, with a header that tells our
// queue pair; the peer answers with its own, and from then on datagrams go from queue pair to queue
// pair. What is too long for those keeps going through UDP.
//
// The attendant reads the UDP socket and finds paths to the peers' queue pairs.
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
  // A new socket, already in the table; its number.
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
  void flush(Duration patience) override;
  void close() override;

  void on_ready(int descriptor) override;

 private:
  // Whom we have talked with, or who with us. Addresses are never in mapped form here.
  struct Peer {
    DatagramEndpoint* endpoint = nullptr;  // what reaches it
    ibv_ah* path = nullptr;                // null: through UDP
    uint32_t qpn = 0;
    Instant heard;                    // when something came from it
    Instant asked;                    // when something that it must answer went to it
    rdma_cm_id* resolving = nullptr;  // is looking for the path...
    uint32_t resolving_qpn = 0;       // ...to this queue pair
  };
  using Peers = std::unordered_map<SocketAddress, Peer, SocketAddressHash>;

  // Waits for the application: in its endpoint's slot, or (through UDP) here.
  struct Message {
    SocketAddress source;
    DatagramEndpoint* endpoint = nullptr;
    DatagramEndpoint::Arrival arrival{};
    std::vector<std::byte> bytes;
    std::span<const std::byte> payload() const { return endpoint ? arrival.payload : bytes; }
  };

  DatagramSocket(int family, int udp) : Socket(udp), family_(family), udp_(udp) {}

  void progress() override;
  bool arm() override;
  void drain_events() override;
  short readiness() const override;
  void add_descriptors(std::vector<pollfd>* to) const override;

  // All with the lock held.
  Status start();
  Result<Peer*> peer_for(const SocketAddress& address);
  Result<SocketAddress> local_address_for(const SocketAddress& peer);
  Result<DatagramEndpoint*> endpoint_for(const SocketAddress& local);
  void make_room_for_peer();
  void forget(Peer& peer);
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
  const int udp_;  // the socket's number
  Sizes sizes_ = Settings::get().sizes;
  bool started_ = false;
  rdma_event_channel* channel_ = nullptr;  // of all ids
  std::vector<std::unique_ptr<DatagramEndpoint>> endpoints_;
  Peers peers_;
  std::unordered_map<rdma_cm_id*, SocketAddress> resolving_;
  std::optional<SocketAddress> connected_;
  int error_ = 0;  // for the next call that can tell it
  bool read_open_ = true;
  bool write_open_ = true;
  std::deque<Message> inbox_;
  size_t udp_bytes_ = 0;                             // of the inbox, those that came through UDP
  std::vector<DatagramEndpoint::Arrival> arrivals_;  // while progress() sorts them
  std::vector<std::byte> udp_buffer_;                // the attendant's
};

}  // namespace verbena::rsocket
