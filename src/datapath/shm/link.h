// Link: the shared-memory connection to one process of this host. It has two rings, and a socket
// that transports wake-ups and hangs up when the process ends.
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

// name (users see it behind "shm_"), meaning
#define VERBENA_SHM_COUNTERS(X)                                                                  \
  X(packets_sent, "packets written to a ring")                                                   \
  X(bytes_sent, "their bytes")                                                                   \
  X(packets_received, "packets read from a ring")                                                \
  X(bytes_received, "their bytes")                                                               \
  X(dropped, "dropped: the ring was full, or an address is not of this host")                    \
  X(wakes_sent, "system calls to wake a sleeping peer")                                          \
  X(wakes_received, "times a peer woke this process")                                            \
  X(links_opened, "links to other processes of this host opened so far")                         \
  X(links_refused, "links not opened: another user or version, or no descriptor or memory left") \
  X(links_broken, "links ended because a ring held invalid data")                                \
  X(copies, "direct copies: one-sided access to a peer's memory")                                \
  X(retracted, "packets retracted because the peer did not read them")

struct ShmCounters {
#define X(name, meaning) uint64_t name = 0;
  VERBENA_SHM_COUNTERS(X)
#undef X
};

// The packets of one receive().
struct RxBatch {
  static constexpr size_t kPackets = 64;
  static constexpr size_t kBytes = size_t{128} * 1024;

  std::array<wire::RxPacket, kPackets> packets;
  std::array<std::array<std::byte, kFrontBytes>, kPackets> fronts;  // copied from the rings
  size_t count = 0;
  size_t bytes = 0;

  bool full() const { return count == kPackets || bytes >= kBytes; }
  void clear() { count = bytes = 0; }
  std::span<const wire::RxPacket> view() const { return {packets.data(), count}; }
};

class Link final : public LocalLink {
 public:
  // `written` and `read` are one ring each. `wake_fd` is the wake-up descriptor of a link to this
  // process itself; other links use `socket`.
  Link(uint8_t slot, os::UniqueFd socket, os::UniqueFd wake_fd, Segment segment,
       const RingMemory& written, const RingMemory& read, ShmCounters& counters);

  uint8_t slot() const { return slot_; }
  int fd() const { return socket_.get(); }

  // --- sending ----------------------------------------------------------------------------------
  std::optional<uint8_t> number_of(const Addresses& addresses) override;
  bool full() override { return !writer_.has_room(kSpareBytes); }
  void push(const wire::TxPacket& packet, uint8_t address) override;
  void send_short_ack(const wire::Ack& ack, uint8_t address) override;
  bool is_flush_due() const { return writer_.is_publish_due(); }
  // Publishes the pushed packets and wakes the peer if it sleeps.
  void flush();

  // --- the peer's memory ------------------------------------------------------------------------
  void enable_access(PeerMemory memory) { memory_ = std::move(memory); }
  bool peer_sleeps() const override { return memory_.reachable() && writer_.reader_sleeps(); }
  bool access(const wire::OneSided& request, const Addresses& addresses);
  bool take_denied() { return memory_.take_denied(); }
  // Also returns false if memory is exhausted.
  bool retract(const wire::Unread& requests, uint8_t address) override;
  // The peer's copies in our memory.
  CopyRevoker& copies() { return copy_revoker_; }

  // --- receiving --------------------------------------------------------------------------------
  using IsOwnAddress = bool (*)(const wire::Gid& gid, uint32_t interface_index);
  // Adds received packets to the batch. Drops packets whose source address is not of this host.
  void take(RxBatch& batch, IsOwnAddress is_own, uint32_t interface_index);
  bool empty() const { return is_corrupted() || reader_.empty(); }
  bool poll(uint32_t times) const { return reader_.poll(times) && !is_corrupted(); }
  // The packets of the last batch are no longer used.
  void release() { reader_.release(); }
  void sleep() { reader_.sleep(); }
  // Requests no more wake-ups; reads one that was sent already.
  void wake();
  // Reads all wake-ups from the socket.
  void drain();

  // The peer has written invalid data.
  bool is_corrupted() const {
    return has_invalid_record_ || writer_.is_corrupted() || reader_.is_corrupted();
  }
  bool ended = false;  // the peer has ended; its packets may still be received

 private:
  static constexpr size_t kMaxAddresses = 256;  // the range of RecordWord::address
  // A queue pair sends at most 32 packets or 32 KiB per turn, plus the packet that exceeds that.
  static constexpr size_t kSpareBytes = 2 * kLargestRecord;

  bool retract_unread(const wire::Unread& requests, uint8_t address);
  void drop(const RecordWord& word);
  void check_addresses(uint8_t number, IsOwnAddress is_own, uint32_t interface_index);
  void take_packet(const RingReader::Record& record, RxBatch& batch);
  void take_ack(const RecordWord& word, RxBatch& batch);
  void take_addresses(const RingReader::Record& record, IsOwnAddress is_own,
                      uint32_t interface_index);

  const uint8_t slot_;
  os::UniqueFd socket_;
  os::UniqueFd wake_fd_;
  Segment segment_;
  RingWriter writer_;
  RingReader reader_;
  PeerMemory memory_;
  DirectCopy direct_copy_;
  CopyRevoker copy_revoker_;
  ShmCounters& counters_;
  std::vector<Addresses> announced_;  // to the peer
  std::vector<wire::RxMeta> known_;   // to us; never reallocated, because packets point into it
  // By number: null unless the addresses are of this host, or have been.
  std::array<const wire::RxMeta*, kMaxAddresses> senders_{};
  std::optional<uint8_t> dropped_address_;  // the number of a packet dropped for its addresses
  bool has_invalid_record_ = false;         // the peer wrote an invalid record
};

}  // namespace verbena::datapath
