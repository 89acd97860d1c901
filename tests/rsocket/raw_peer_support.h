// RawPeer: the other end of a stream without an rsocket, so that it can send messages that no
// rsocket sends.
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
  // Connects with the data of an rsocket, which `change` may corrupt. Null if refused.
  // `rnr_retries` is the RNR retry count; 7 means unlimited.
  static std::unique_ptr<RawPeer> connect_valid(
      const Address& to, const std::function<void(rsocket::ConnectData&)>& change = {},
      uint8_t rnr_retries = 7);
  // Waits for a connection on `listening` (a listening, synchronous id) and accepts it with `data`.
  static std::unique_ptr<RawPeer> accept(rdma_cm_id* listening, const std::vector<std::byte>& data);
  static std::unique_ptr<RawPeer> accept_valid(rdma_cm_id* listening);
  ~RawPeer();

  // The data that the rsocket sent when it connected.
  const rsocket::ConnectData& rsocket_data() const { return rsocket_data_; }
  // The memory of this peer: the rsocket writes its buffers into the list, and data into the
  // buffer.
  const std::byte* list() const { return memory_.data(); }
  const std::byte* buffer() const { return memory_.data() + kListBytes; }

  // An RDMA WRITE with immediate of `size` bytes (zeros, or `bytes`). False if it fails.
  bool send_message(uint32_t immediate, uint64_t address = 0, uint32_t key = 0, uint32_t size = 0,
                    const std::byte* bytes = nullptr);
  bool send_message(rsocket::Op op, uint32_t value) {
    return send_message(rsocket::Message{op, value}.encode());
  }
  // A SEND without immediate data.
  bool send_without_immediate();
  // The next message of the rsocket.
  std::optional<rsocket::Message> receive_message();

  static constexpr size_t kListBytes = 4096;
  static constexpr uint32_t kBufferBytes = 65536;

 private:
  RawPeer() : memory_(kListBytes + 2 * kBufferBytes) {}
  bool make_queue_pair();
  rsocket::ConnectData own_data() const;
  bool post(ibv_send_wr* request);
  void read_connect_data(const rdma_cm_event* event);

  rdma_cm_id* id_ = nullptr;
  std::vector<std::byte> memory_;
  ibv_mr* region_ = nullptr;
  rsocket::ConnectData rsocket_data_;
};

struct DestroySyncId {
  void operator()(rdma_cm_id* id) const { rdma_destroy_id(id); }
};
using SyncIdPtr = std::unique_ptr<rdma_cm_id, DestroySyncId>;
SyncIdPtr raw_listener(Address* at);

std::vector<std::byte> stored(const rsocket::ConnectData& data);

}  // namespace verbena::test
