// The sending half: packets are copied, summed and put into batches as they are pushed, and leave
// at flush(). A batch is a number of packets to one peer process that the kernel cuts from a single
// send.
//
// The packets of one queue pair leave in the order in which they were pushed. Those of several mix:
// each joins the first batch of its size that does not leave before its queue pair's latest one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/udp/udp_endpoint.h"
#include "datapath/udp/udp_options.h"
#include "datapath/udp/zero_copy_sender.h"
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
  struct GsoBatch {
    UdpPath* path;    // its first packet's
    UdpPath* latest;  // its last packet's
    std::byte* end;   // of that packet
    size_t bytes;
    uint32_t stride;  // size of every packet but the last
    uint32_t segments;
    uint32_t room;  // for so many more of that size
    uint32_t first_piece;
    uint32_t last_piece;
    uint8_t slot;        // the peer process: the receiver's kernel steers a batch as a whole
    bool closed;         // its last packet was a shorter one
    bool gathered;       // it grew while there were others behind it
    ZeroCopyRing* lent;  // where it lies; null: in the buffer
  };
  // What of a batch lies in one place. In lent memory that is all of it.
  struct Piece {
    std::byte* begin;
    size_t bytes;   // not of a batch's last one: that goes on to the batch's end
    uint32_t next;  // of the same batch
  };
  struct Messages;

  UdpPath* find(wire::PathId id) const;
  GsoBatch& batch_for(UdpPath& path, const wire::TxPacket& packet, size_t packet_bytes);
  bool takes(const GsoBatch& batch, const UdpPath& path, const wire::TxPacket& packet,
             size_t packet_bytes) const;
  GsoBatch& join(size_t batch, UdpPath& path, size_t packet_bytes);
  GsoBatch& begin_batch(UdpPath& path, const wire::TxPacket& packet, size_t packet_bytes);
  uint32_t begin_piece(std::byte* at);
  // Batches of such packets to that process were long when they left last. Sizes are multiples of
  // four; those of one message, immediate data and all, are within 64 bytes of each other.
  uint32_t& long_before(const GsoBatch& batch) { return long_before(batch.slot, batch.stride); }
  uint32_t& long_before(uint8_t slot, size_t packet_bytes) {
    return long_before_[(packet_bytes / 4 + size_t{slot} * 16) % long_before_.size()];
  }
  void learn();
  // The memory for long batches on this path; null: they are copied by the kernel.
  ZeroCopyRing* zero_copy_ring(UdpPath& path, uint8_t slot);
  void send_trains(size_t first, size_t end);
  bool send_lent(const GsoBatch& batch);
  void send_copies(size_t first, size_t end);
  void choose_cut(const GsoBatch& batch);
  void count(const GsoBatch& batch);
  // Whether the first of them is to be tried again.
  bool on_send_error(const GsoBatch& batch, int error);
  void warn(auto describe);  // describe() makes the sentence

  const std::vector<std::unique_ptr<UdpPath>>& paths_;
  UdpCounters& counters_;
  const UdpOptions options_;
  std::unique_ptr<std::byte[]> buffer_;
  ZeroCopySender lender_;
  // A peer that reads has a window for each address of ours that it reads from.
  struct Lent {
    wire::Gid source;
    wire::Gid destination;
    uint8_t slot;
    std::weak_ptr<ZeroCopyRing> memory;  // the paths' that lead there
  };
  std::vector<Lent> lent_;
  std::byte* buffer_end_;  // of what it holds
  size_t used_ = 0;        // bytes that were pushed, to lent memory too
  size_t packets_ = 0;
  std::vector<GsoBatch> batches_;
  size_t open_from_ = 0;  // those before it take no more
  std::vector<Piece> pieces_;
  uint64_t batch_ = 1;
  bool several_ = false;    // paths in this batch
  uint32_t gathering_ = 0;  // so many more batches are expected to have several
  std::array<uint32_t, 256> long_before_{};
  uint16_t wanted_cut_ = 0;  // by the latest batch that the socket does not cut by itself
  uint32_t alike_ = 0;       // so many in a row wanted that
  std::unique_ptr<Messages> messages_;
  bool waited_ = false;                    // for room in the socket, in this flush
  const GsoBatch* tried_again_ = nullptr;  // after an error that may have been an earlier packet's
  std::optional<std::string> warning_;
  std::optional<Instant> warned_at_;
};

}  // namespace verbena::datapath
