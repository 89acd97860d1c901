// The sending half: push() copies a packet into a GSO batch and computes its ICRC, flush() sends
// the batches.
//
// The packets of one queue pair leave in the order of push(). Packets of several queue pairs share
// batches: each joins the first batch of its size that is not sent before its queue pair's latest
// one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/copy_choice.h"
#include "datapath/udp/udp_endpoint.h"
#include "datapath/udp/udp_options.h"
#include "datapath/udp/zero_copy_sender.h"
#include "wire/packet_io.h"

struct mmsghdr;

namespace verbena::datapath {

class UdpSender final : public wire::PacketSink {
 public:
  // The index in `paths` is the PathId. Packets to a closed path are dropped.
  UdpSender(const std::vector<std::unique_ptr<UdpPath>>& paths, UdpCounters& counters,
            const UdpOptions& options);
  ~UdpSender() override;

  size_t room() const override;
  void push(const wire::TxPacket& packet) override;
  void push_run(const wire::TxRun& run) override;
  // Sends the batches. Must be called before a path with pushed packets is closed.
  void flush();

  std::optional<std::string> take_warning();

 private:
  struct GsoBatch {
    UdpPath* path;    // of the first packet
    UdpPath* latest;  // of the last packet
    std::byte* end;   // of the last packet
    size_t bytes;
    uint32_t stride;  // size of every packet but the last
    uint32_t segments;
    uint32_t free_segments;  // how many more packets of that size fit
    uint32_t first_area;
    uint32_t last_area;
    uint8_t slot;  // of the peer process: the receiver's kernel steers a batch as a whole
    uint8_t traffic_class;
    bool closed;              // the last packet is shorter
    bool gathered;            // it grew after a later batch had begun
    ZeroCopyRing* zero_copy;  // the memory of the batch; null: buffer_
  };
  // A contiguous part of a batch. A zero-copy batch has one area.
  struct Area {
    std::byte* begin;
    size_t bytes;   // not valid for the last area, which ends at GsoBatch::end
    uint32_t next;  // index of the next area of the batch
  };
  struct Messages;

  // Headers, the largest path MTU, padding and ICRC, rounded up.
  static constexpr size_t kLargestPacket = 4224;

  UdpPath* find(wire::PathId id) const;
  // --- udp_sender_packets.cc --------------------------------------------------------------------
  UdpPath* path_of(const wire::TxPacket& packet, size_t bytes);
  static uint32_t icrc_prefix_of(const GsoBatch& batch, size_t bytes);
  // --- udp_sender.cc ----------------------------------------------------------------------------
  GsoBatch& batch_for(UdpPath& path, const wire::TxPacket& packet, size_t packet_bytes);
  bool may_grow(const GsoBatch& batch, const wire::TxPacket& packet) const;
  bool may_join(const GsoBatch& batch, const UdpPath& path, const wire::TxPacket& packet,
                size_t packet_bytes) const;
  GsoBatch& join(size_t batch, UdpPath& path, size_t packet_bytes);
  GsoBatch& begin_batch(UdpPath& path, const wire::TxPacket& packet, size_t packet_bytes);
  uint32_t begin_area(std::byte* at);
  // The packet size, if the latest batch of such packets to that lane was long; otherwise 0.
  // Sizes are multiples of four; those of one message differ by less than 64 bytes.
  uint32_t& last_long_stride(const GsoBatch& batch) {
    return last_long_stride(batch.slot, batch.stride);
  }
  uint32_t& last_long_stride(uint8_t slot, size_t packet_bytes) {
    return last_long_stride_[(packet_bytes / 4 + size_t{slot} * 16) % last_long_stride_.size()];
  }
  void predict();
  // The memory for long batches on this path; null: the kernel copies them.
  ZeroCopyRing* zero_copy_ring(UdpPath& path, uint8_t slot);
  void use_traffic_class(UdpEndpoint& endpoint, uint8_t traffic_class);
  void send_batches(size_t first, size_t end);
  bool send_zero_copy(const GsoBatch& batch);
  void send_copies(size_t first, size_t end);
  void choose_socket_segment_size(const GsoBatch& batch);
  void count(const GsoBatch& batch);
  // Returns whether to send the batch again.
  bool on_send_error(const GsoBatch& batch, int error);
  void warn(auto describe);  // describe() returns the sentence

  const std::vector<std::unique_ptr<UdpPath>>& paths_;
  UdpCounters& counters_;
  const UdpOptions options_;
  std::unique_ptr<std::byte[]> buffer_;
  ZeroCopySender zero_copy_sender_;
  CopyChoice large_copies_;  // of batches without a copy by the kernel
  // A peer has one congestion window per local address.
  struct ZeroCopyPeer {
    wire::Gid source;
    wire::Gid destination;
    uint8_t slot;
    std::weak_ptr<ZeroCopyRing> ring;  // owned by the paths to the peer
  };
  std::vector<ZeroCopyPeer> zero_copy_peers_;
  std::byte* buffer_end_;  // of the bytes in buffer_
  size_t used_ = 0;        // pushed bytes, including zero-copy ones
  size_t packets_ = 0;
  std::vector<GsoBatch> batches_;
  size_t open_from_ = 0;  // earlier batches are full
  std::vector<Area> areas_;
  uint64_t flush_number_ = 1;
  bool several_paths_ = false;  // were pushed to since the last flush
  uint32_t gathering_ = 0;      // number of flushes that are still expected to have several paths
  std::array<uint32_t, 256> last_long_stride_{};
  uint16_t wanted_segment_bytes_ = 0;  // of the latest batch that needed a control message for it
  uint32_t equal_batches_ = 0;         // number of such batches in a row
  std::unique_ptr<Messages> messages_;
  bool waited_ = false;                // for free space in the socket, in this flush
  const GsoBatch* retried_ = nullptr;  // after an error that an earlier packet may have caused
  std::optional<std::string> warning_;
  std::optional<Instant> warned_at_;
};

}  // namespace verbena::datapath
