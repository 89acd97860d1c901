// Link: the way to one process of this host and back. Two rings of packets, and a socket that wakes
// whoever sleeps and ends when the process does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "datapath/local_medium.h"
#include "datapath/shm/peer_memory.h"
#include "datapath/shm/ring.h"
#include "datapath/shm/segment.h"
#include "os/unique_fd.h"
#include "wire/packet_io.h"

namespace verbena::datapath {

struct ShmCounters {
  uint64_t packets_sent = 0;
  uint64_t bytes_sent = 0;
  uint64_t packets_received = 0;
  uint64_t bytes_received = 0;
  uint64_t dropped = 0;     // to a ring that was full, or from addresses that are not ours
  uint64_t wakes_sent = 0;  // system calls to wake a peer
  uint64_t wakes_received = 0;
  uint64_t links_opened = 0;
  uint64_t links_refused = 0;
  uint64_t links_broken = 0;
  uint64_t copies = 0;     // in peers' memory, without them
  uint64_t retracted = 0;  // packets
};

// What one receive() hands out.
struct RxBatch {
  static constexpr size_t kPackets = 64;
  static constexpr size_t kBytes = size_t{128} * 1024;

  std::array<wire::RxPacket, kPackets> packets;
  std::array<std::array<std::byte, kFrontBytes>, kPackets> fronts;  // copied out of the rings
  size_t count = 0;
  size_t bytes = 0;

  bool full() const { return count == kPackets || bytes >= kBytes; }
  void clear() { count = bytes = 0; }
  std::span<const wire::RxPacket> view() const { return {packets.data(), count}; }
};

class Link final : public LocalLink {
 public:
  // `written` and `read`: one ring each. `bell` is what wakes the peer; a link to ourselves has one
  // that is not the socket.
  Link(uint8_t slot, os::UniqueFd socket, os::UniqueFd bell, Segment segment,
       const RingMemory& written, const RingMemory& read, ShmCounters& counters);

  uint8_t slot() const { return slot_; }
  int fd() const { return socket_.get(); }

  // --- sending ----------------------------------------------------------------------------------
  std::optional<uint8_t> number_of(const Addresses& addresses) override;
  bool full() override { return !writer_.has_room(kSpareBytes); }
  void push(const wire::TxPacket& packet, uint8_t address) override;
  void send_short_ack(const wire::Ack& ack, uint8_t address) override;
  bool anything_hidden() const { return writer_.is_publish_due(); }
  // Shows what was pushed, and wakes the peer if it sleeps.
  void flush();

  // --- the peer's memory ------------------------------------------------------------------------
  void allow(PeerMemory memory) { memory_ = std::move(memory); }
  bool peer_sleeps() const override { return memory_.reachable() && writer_.reader_sleeps(); }
  bool access(const wire::OneSided& request, const Addresses& addresses);
  bool take_denied() { return memory_.take_denied(); }
  // False without memory for it, too.
  bool retract(const wire::Unread& requests, uint8_t address) override;
  // What the peer does in ours.
  CopyRevoker& copies() { return copy_revoker_; }

  // --- receiving --------------------------------------------------------------------------------
  using IsOwnAddress = bool (*)(const wire::Gid& gid, uint32_t interface_index);
  // Adds what has come to the batch. The addresses it says it comes from must be this host's.
  void take(RxBatch& batch, IsOwnAddress is_own, uint32_t interface_index);
  bool empty() const { return broken() || reader_.empty(); }
  bool await(uint32_t looks) const { return reader_.await(looks) && !broken(); }
  // The batch is done with.
  void release() { reader_.release(); }
  void sleep() { reader_.sleep(); }
  // No more waking; takes from the socket what has come of it.
  void wake();
  // Takes what has come of waking from the socket.
  void drain();

  // The peer has written nonsense.
  bool broken() const { return garbled_ || writer_.broken() || reader_.broken(); }
  bool ended = false;  // the peer is gone; what it had sent may still be taken

 private:
  static constexpr size_t kMaxAddresses = 256;  // as many as a record's word can tell apart
  // A turn's share of a queue pair is 32 packets or 32 KiB, and the packet that goes beyond.
  static constexpr size_t kSpareBytes = 2 * kLargestRecord;

  bool retract_unread(const wire::Unread& requests, uint8_t address);
  void drop(const RecordWord& word);
  void take_packet(const RingReader::Record& record, RxBatch& batch);
  void take_acknowledgement(const RecordWord& word, RxBatch& batch);
  void take_addresses(const RingReader::Record& record, IsOwnAddress is_own,
                      uint32_t interface_index);

  const uint8_t slot_;
  os::UniqueFd socket_;
  os::UniqueFd bell_;
  Segment segment_;
  RingWriter writer_;
  RingReader reader_;
  PeerMemory memory_;
  DirectCopy direct_copy_;
  CopyRevoker copy_revoker_;
  ShmCounters& counters_;
  std::vector<Addresses> announced_;  // by us
  std::vector<wire::RxMeta> known_;  // by the peer; they never move: packets in a batch point there
  std::array<const wire::RxMeta*, kMaxAddresses> senders_{};  // those of them that are trusted
  bool garbled_ = false;                                      // a record was none
};

}  // namespace verbena::datapath
