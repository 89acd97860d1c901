// StreamEndpoint: the verbs objects and the memory of one connection. Posts what it is told; what
// may be posted when is SendWindow's and ReceiveRing's knowledge, kept here beside them.
//
// Memory: one piece that the peer may write (the list of its buffers, its table of iomaps, our
// receive ring), one that only we read (send ring, places for control messages).
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

// What a work request id says about whose completion it is. Writes of the stream have 0 in these
// bits: the rest is SendWindow's.
enum class Work : uint8_t { kWrite = 0, kReceive, kControl, kGoodbye, kProbe };
constexpr uint64_t work_id(Work work) { return uint64_t{static_cast<uint8_t>(work)} << 56; }
constexpr Work work_of(uint64_t id) { return static_cast<Work>(id >> 56); }

class StreamEndpoint {
 public:
  // On an id that knows its device. Posts all receives.
  static Result<std::unique_ptr<StreamEndpoint>> create(rdma_cm_id* id, Sizes sizes);
  ~StreamEndpoint();
  StreamEndpoint(const StreamEndpoint&) = delete;
  StreamEndpoint& operator=(const StreamEndpoint&) = delete;

  const Sizes& sizes() const { return sizes_; }
  ConnectData connect_data() const;
  void connected(const ConnectData& peer);
  // Once the queue pair sends and receives.
  void established();
  const ConnectData& peer() const { return peer_; }

  CompletionSource& completions() { return *completions_; }
  SendWindow& window() { return window_; }
  ReceiveRing& ring() { return ring_; }
  ibv_pd* protection_domain() const { return id_->pd; }

  // --- receiving --------------------------------------------------------------------------------
  // All posting returns an errno or 0.
  int post_receives(unsigned count);
  const std::byte* ring_data() const { return receive_data_; }
  // The peer said something about its buffers: takes those that it put into our list. False: it
  // put one where none belongs.
  bool take_buffers();
  IomapEntry peer_iomap(uint32_t index) const {
    return IomapEntry::load(iomaps_ + size_t{index} * IomapEntry::kSize);
  }

  // --- sending ----------------------------------------------------------------------------------
  // Takes the bytes of `write` from `from` and posts it; `message` where it goes with one.
  int post_write(const SendWindow::Write& write, Buffers& from, const Message* message);
  // A message without data, from the places for control messages.
  int post_control(Message message, Work work);
  // Tells the peer how much it may send, and of a free half of the ring where there is one.
  int post_news();
  // Nothing but a sign of life, which the peer's queue pair must acknowledge.
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
  uint32_t next_list_entry_ = 1;  // where the peer puts its next buffer
  uint32_t next_peer_entry_ = 1;  // where we put ours
};

}  // namespace verbena::rsocket
