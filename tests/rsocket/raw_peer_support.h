// RawPeer: the other end of a stream without an rsocket behind it, so that it can say what no
// rsocket would say.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rsocket/wire.h"
#include "tests/rsocket/socket_support.h"

namespace verbena::test {

class RawPeer {
 public:
  // Connects; empty where it was refused.
  // With data as an rsocket would send it. `change` may spoil it. `patience`: how often it tries
  // again where it finds no receive; 7: without end.
  static std::unique_ptr<RawPeer> connect_well(
      const Address& to, const std::function<void(rsocket::ConnectData&)>& change = {},
      uint8_t patience = 7);
  // Waits for a connection on `listening` (a listening, synchronous id) and accepts it so.
  static std::unique_ptr<RawPeer> accept(rdma_cm_id* listening, const std::vector<std::byte>& data);
  static std::unique_ptr<RawPeer> accept_well(rdma_cm_id* listening);
  ~RawPeer();

  // What the rsocket said when it connected.
  const rsocket::ConnectData& told() const { return told_; }
  // Our memory: the rsocket writes its buffers into the list, and data into the buffer.
  const std::byte* list() const { return memory_.data(); }
  const std::byte* buffer() const { return memory_.data() + kListBytes; }

  // An RDMA WRITE with immediate of `size` bytes (of zeros, or of `bytes`). False: it failed.
  bool say(uint32_t immediate, uint64_t address = 0, uint32_t key = 0, uint32_t size = 0,
           const std::byte* bytes = nullptr);
  bool say(rsocket::Op op, uint32_t value) { return say(rsocket::Message{op, value}.encode()); }
  // A SEND without immediate data.
  bool send_without_immediate();
  // The next message of the rsocket.
  std::optional<rsocket::Message> hear();

  static constexpr size_t kListBytes = 4096;
  static constexpr uint32_t kBufferBytes = 65536;

 private:
  RawPeer() : memory_(kListBytes + 2 * kBufferBytes) {}
  bool make_queue_pair();
  rsocket::ConnectData own_data() const;
  bool post(ibv_send_wr* request);
  void read_answer(const rdma_cm_event* event);

  rdma_cm_id* id_ = nullptr;
  std::vector<std::byte> memory_;
  ibv_mr* region_ = nullptr;
  rsocket::ConnectData told_;
};

struct DestroySyncId {
  void operator()(rdma_cm_id* id) const { rdma_destroy_id(id); }
};
using SyncIdPtr = std::unique_ptr<rdma_cm_id, DestroySyncId>;
SyncIdPtr raw_listener(Address* at);

std::vector<std::byte> stored(const rsocket::ConnectData& data);

}  // namespace verbena::test
