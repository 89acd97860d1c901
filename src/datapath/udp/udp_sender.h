// The sending half: packets are copied, summed and put into trains as they are pushed, and leave at
// flush(). A train is a run of packets to one peer process that the kernel cuts from a single send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/udp/page_lender.h"
#include "datapath/udp/udp_endpoint.h"
#include "datapath/udp/udp_options.h"
#include "wire/packet_io.h"

struct mmsghdr;

namespace verbena::datapath {

class UdpSender final : public wire::PacketSink {
 public:
  // Paths are looked up by PathId; one that is gone swallows its packets.
  UdpSender(const std::vector<std::unique_ptr<UdpPath>>& paths, UdpCounters& counters,
            const UdpOptions& options);
  ~UdpSender() override;

  size_t room() const override;
  void push(const wire::TxPacket& packet) override;
  // Sends what was pushed. Must be called before a path that was pushed to goes away.
  void flush();

  std::optional<std::string> take_warning();

 private:
  struct Train {
    UdpPath* path;
    std::byte* begin;
    size_t bytes;
    uint32_t stride;  // size of every packet but the last
    uint32_t segments;
    uint8_t slot;  // the peer process: the receiver's kernel steers a train as a whole
    bool closed;   // its last packet was a shorter one
    bool lent;     // lies in the peer's lent memory
  };
  struct Messages;

  UdpPath* find(wire::PathId id) const;
  Train& train_for(UdpPath& path, const wire::TxPacket& packet, size_t packet_bytes);
  // The memory for long trains on this path; null: they are copied by the kernel.
  LentMemory* lent_memory(UdpPath& path, uint8_t slot);
  void send_trains(size_t first, size_t end);
  bool send_lent(const Train& train);
  void send_copies(size_t first, size_t end);
  void count(const Train& train);
  // Whether the first of them is to be tried again.
  bool on_send_error(const Train& train, int error);
  void warn(std::string text);

  const std::vector<std::unique_ptr<UdpPath>>& paths_;
  UdpCounters& counters_;
  const UdpOptions options_;
  std::unique_ptr<std::byte[]> buffer_;
  PageLender lender_;
  struct Lent {
    wire::Gid destination;
    uint8_t slot;
    std::weak_ptr<LentMemory> memory;  // the paths' that lead there
  };
  std::vector<Lent> lent_;
  size_t used_ = 0;
  size_t packets_ = 0;
  std::vector<Train> trains_;
  std::unique_ptr<Messages> messages_;
  bool waited_ = false;  // for room in the socket, in this flush
  bool tried_again_ =
      false;  // after an error that may have been an earlier packet's, in this flush
  std::optional<std::string> warning_;
  std::optional<Instant> warned_at_;
};

}  // namespace verbena::datapath
