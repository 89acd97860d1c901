// Feeds all that a peer of an rsocket can send: connection data, datagram headers, immediate data
// and new buffers. No load reads past the input; an accepted structure is the same after a store
// and a load; and for any message of a connected peer no byte is read outside the receive ring or
// sent beyond the peer's buffers.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "rsocket/receive_ring.h"
#include "rsocket/send_window.h"
#include "rsocket/wire.h"

namespace {

using namespace verbena::rsocket;

constexpr uint32_t kHalfBytes = 4096;
constexpr uint16_t kReceives = 16;
constexpr uint32_t kSendRing = 16384;
constexpr uint16_t kSendSlots = 16;

using Bytes = std::span<const std::byte>;

// Padding is not kept, so the results of two stores are compared.
template <typename Value, typename Load>
void round_trip(const std::optional<Value>& loaded, Load load) {
  if (!loaded) return;
  std::array<std::byte, 64> first{}, second{};
  loaded->store(first.data());
  const auto again = load(Bytes(first));
  VERBENA_CHECK(again.has_value());
  again->store(second.data());
  VERBENA_CHECK(first == second);
}

void load_all(Bytes bytes) {
  round_trip(ConnectData::load(bytes), [](Bytes b) { return ConnectData::load(b); });
  round_trip(DatagramHeader::load(bytes), [](Bytes b) { return DatagramHeader::load(b); });
  for (const int family : {AF_INET, AF_INET6}) {
    const auto load = [family](Bytes b) { return UdpHeader::load(b, family); };
    round_trip(load(bytes), load);
  }
}

// The state of a connection, as in StreamSocket.
class Stream {
 public:
  Stream(Bytes input, const ConnectData& peer) : input_(input), offered_(peer.first_buffer.length) {
    window_.connected(peer.credits, peer.first_buffer);
  }

  void run() {
    while (!input_.empty() && alive_) {
      switch (byte() % 6) {
        case 0:
          message(Message::decode(number()));
          break;
        case 1:
          message({Op::kData, number() % (2 * kHalfBytes)});
          break;
        case 2:
          message({Op::kCredits, number() & 0xFFFF});
          break;
        case 3:
          read();
          break;
        case 4:
          send();
          break;
        default:
          complete();
      }
    }
  }

 private:
  uint8_t byte() {
    if (input_.empty()) return 0;
    const auto first = std::to_integer<uint8_t>(input_.front());
    input_ = input_.subspan(1);
    return first;
  }
  uint32_t number() {
    uint32_t n = 0;
    for (int i = 0; i < 4; ++i) n = n << 8 | byte();
    return n;
  }

  void message(const Message& m) {
    VERBENA_CHECK(Message::decode(m.encode()).value == m.value);
    switch (m.op) {
      case Op::kData:
        alive_ = ring_.on_data(m.value);
        break;
      case Op::kCredits: {
        alive_ = window_.on_credit_limit(static_cast<uint16_t>(m.value));
        std::array<std::byte, RemoteBuffer::kSize> entry;
        for (std::byte& b : entry) b = std::byte{byte()};
        const RemoteBuffer buffer = RemoteBuffer::load(entry.data());
        if (buffer.length == 0) break;
        alive_ = alive_ && window_.on_buffer(buffer);
        if (alive_) offered_ += buffer.length;
        break;
      }
      default:
        break;
    }
    VERBENA_CHECK(ring_.readable() <= ring_.capacity());
  }

  void read() {
    uint64_t want = number();
    while (want > 0 && ring_.readable() > 0) {
      const ReceiveRing::Range range = ring_.range();
      VERBENA_CHECK(range.length > 0 && range.offset + range.length <= ring_.capacity());
      const uint64_t bytes = std::min(want, range.length);
      ring_.consume(bytes);
      want -= bytes;
    }
    if (!ring_.update_due()) return;
    ring_.credit_limit();
    if (ring_.half_free()) VERBENA_CHECK(ring_.announce_half() + kHalfBytes <= ring_.capacity());
  }

  void send() {
    if (!window_.can_send()) return;
    const SendWindow::Write write = window_.take_data(1 + number() % 100'000);
    VERBENA_CHECK(write.length > 0 && write.length <= offered_);
    VERBENA_CHECK(write.ring_offset < kSendRing && write.length <= kSendRing);
    offered_ -= write.length;
    if (write.completion_id != 0) in_flight_.push_back(write.completion_id);
  }

  void complete() {
    if (in_flight_.empty()) return;
    window_.on_completion(in_flight_.front());
    in_flight_.erase(in_flight_.begin());
  }

  Bytes input_;
  ReceiveRing ring_{kHalfBytes, kReceives};
  SendWindow window_{kSendSlots, kSendRing, 64};
  uint64_t offered_;
  std::vector<uint64_t> in_flight_;
  bool alive_ = true;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  load_all(bytes);
  if (size >= IomapEntry::kSize) {
    std::array<std::byte, IomapEntry::kSize> stored;
    IomapEntry::load(bytes.data()).store(stored.data(), false);
    VERBENA_CHECK(std::equal(stored.begin(), stored.end(), bytes.begin()));
  }
  // Rejected connection data still starts a stream here, otherwise most inputs would end with it.
  const ConnectData valid{
      .credits = kReceives, .buffer_list = {1, 1, 2}, .first_buffer = {4096, 1, kHalfBytes}};
  const auto peer = ConnectData::load(bytes);
  Stream(peer ? bytes.subspan(ConnectData::kSize) : bytes, peer ? *peer : valid).run();
  return 0;
}
