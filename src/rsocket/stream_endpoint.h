// StreamEndpoint: the verbs objects and the memory of one connection. It posts what the caller
// decides. Its SendWindow and ReceiveRing determine what may be posted, and when.
//
// Memory: one area that the peer may write (the list of its buffers, its table of iomaps, our
// receive ring), and one that only we read (send ring, slots for control messages).
#pragma once

#include <rdma/rdma_cma.h>

#include <memory>
#include <span>

#include "base/result.h"
#include "rsocket/buffers.h"
#include "rsocket/completion_source.h"
#include "rsocket/pages.h"
#include "rsocket/receive_ring.h"
#include "rsocket/send_window.h"
#include "rsocket/settings.h"
#include "rsocket/wire.h"

namespace verbena::rsocket {

// The kind of a work request, in the upper bits of its ID. Writes of the stream have 0 there; the
// other bits belong to SendWindow.
enum class Work : uint8_t { kWrite = 0, kReceive, kControl, kLastMessage, kProbe };
constexpr uint64_t work_id(Work work) { return uint64_t{static_cast<uint8_t>(work)} << 56; }
constexpr Work work_of(uint64_t id) { return static_cast<Work>(id >> 56); }

class StreamEndpoint {
 public:
  // Requires an ID with a device. Posts all receives.
  static Result<std::unique_ptr<StreamEndpoint>> create(rdma_cm_id* id, Sizes sizes);
  ~StreamEndpoint();
  StreamEndpoint(const StreamEndpoint&) = delete;
  StreamEndpoint& operator=(const StreamEndpoint&) = delete;

  const Sizes& sizes() const { return sizes_; }
  ConnectData connect_data() const;
  void connected(const ConnectData& peer);
  // Called when the queue pair is in RTS.
  void established();
  const ConnectData& peer() const { return peer_; }

  CompletionSource& completions() { return *completions_; }
  SendWindow& window() { return window_; }
  ReceiveRing& ring() { return ring_; }
  ibv_pd* protection_domain() const { return id_->pd; }

  // --- receiving --------------------------------------------------------------------------------
  // All post functions return an errno or 0.
  int post_receives(unsigned count);
  const std::byte* ring_data() const { return receive_data_; }
  // The peer has sent an update: takes the buffers that it wrote into our list. Returns false if
  // one of them is unexpected.
  bool take_buffers();
  IomapEntry peer_iomap(uint32_t index) const {
    return IomapEntry::load(iomaps_ + size_t{index} * IomapEntry::kSize);
  }

  // --- sending ----------------------------------------------------------------------------------
  // Copies the bytes of `write` out of `from` and posts it, with `message` if it is not null.
  int post_write(const SendWindow::Write& write, Buffers& from, const Message* message);
  // Posts a message without data from a control slot.
  int post_control(Message message, Work work);
  // Posts the credit limit for the peer, and a free half of the ring if there is one.
  int post_update();
  // Posts an empty write that the peer's queue pair must acknowledge.
  int post_probe();

 private:
  StreamEndpoint(rdma_cm_id* id, const Sizes& sizes);
  Status build();
  int post(ibv_send_wr* request);

  rdma_cm_id* id_;
  Sizes sizes_;
  std::unique_ptr<CompletionSource> completions_;
  Pages shared_;   // the peer writes it
  Pages private_;  // the queue pair reads it
  ibv_mr* shared_region_ = nullptr;
  ibv_mr* private_region_ = nullptr;
  std::byte* buffer_list_ = nullptr;
  std::byte* iomaps_ = nullptr;
  std::byte* receive_data_ = nullptr;
  bool has_queue_pair_ = false;

  SendWindow window_;
  ReceiveRing ring_;
  ConnectData peer_;
  uint32_t next_list_entry_ = 1;  // the entry of the peer's next buffer
  uint32_t next_peer_entry_ = 1;  // the entry of our next buffer
};

}  // namespace verbena::rsocket
