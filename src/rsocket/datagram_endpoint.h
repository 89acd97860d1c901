// DatagramEndpoint: the UD queue pair of a datagram socket on one local address, with its buffers.
// A datagram socket has one for each local address that it sends from.
#pragma once

#include <rdma/rdma_cma.h>

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "rsocket/buffers.h"
#include "rsocket/completion_source.h"
#include "rsocket/pages.h"
#include "rsocket/settings.h"
#include "rsocket/wire.h"

namespace verbena::rsocket {

class DatagramEndpoint {
 public:
  // Header and payload of a datagram through a queue pair. Peers' receive buffers are not larger.
  static constexpr uint32_t kMaxMessage = 2048;

  // `local` has the port of the UDP socket.
  static Result<std::unique_ptr<DatagramEndpoint>> create(rdma_event_channel* channel,
                                                          const SocketAddress& local,
                                                          const Sizes& sizes);
  ~DatagramEndpoint();
  DatagramEndpoint(const DatagramEndpoint&) = delete;
  DatagramEndpoint& operator=(const DatagramEndpoint&) = delete;

  const SocketAddress& local() const { return header_.source; }
  rdma_cm_id* id() const { return id_; }
  uint32_t qpn() const { return id_->qp->qp_num; }
  CompletionSource& completions() { return *completions_; }

  // --- sending ----------------------------------------------------------------------------------
  bool broken() const { return broken_; }
  bool can_send() const { return broken_ || sends_in_flight_ < send_slots_; }
  bool idle() const { return broken_ || sends_in_flight_ == 0; }
  bool fits(size_t payload) const { return header_.size() + payload <= max_message_; }
  // Requires can_send() and fits(). Returns an errno or 0.
  int send(ibv_ah* to, uint32_t qpn, Buffers& from);

  // --- receiving --------------------------------------------------------------------------------
  // A received datagram. The caller returns its slot with release_slot().
  struct ReceivedDatagram {
    uint32_t slot;
    SocketAddress source;
    std::span<const std::byte> payload;
  };
  void take(std::vector<ReceivedDatagram>* received);
  void release_slot(uint32_t slot);

 private:
  explicit DatagramEndpoint(const SocketAddress& local) : header_{local} {}
  Status build(rdma_event_channel* channel, const Sizes& sizes);
  void on_receive(const ibv_wc& completion, std::vector<ReceivedDatagram>* received);

  DatagramHeader header_;
  rdma_cm_id* id_ = nullptr;
  bool has_queue_pair_ = false;
  bool broken_ = false;
  std::unique_ptr<CompletionSource> completions_;
  Pages memory_;  // slots for receiving, then for sending
  ibv_mr* region_ = nullptr;
  uint32_t receive_slots_ = 0;
  uint32_t send_slots_ = 0;
  uint32_t max_message_ = 0;
  uint32_t next_send_slot_ = 0;
  uint32_t sends_in_flight_ = 0;
};

// Creates an address handle for the path of `resolved`, an ID whose route is resolved. Returns null
// and sets errno on failure.
ibv_ah* make_address_handle(ibv_pd* protection_domain, const rdma_cm_id* resolved);

}  // namespace verbena::rsocket
