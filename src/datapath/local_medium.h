// LocalMedium: the interface of a medium, besides UDP, that connects processes of this host.
// SelectingDatapath chooses a medium for each packet. registry.h lists the media.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "datapath/datapath.h"
#include "wire/one_sided.h"
#include "wire/packet_io.h"

namespace verbena::datapath {

class PeerAccess;  // peer_access.h

// The addresses of a path.
struct Addresses {
  wire::Gid source;
  wire::Gid destination;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  bool operator==(const Addresses&) const = default;
};

// The link to one process. wire::LocalPeer describes the functions.
class LocalLink {
 public:
  virtual ~LocalLink() = default;
  LocalLink(const LocalLink&) = delete;
  LocalLink& operator=(const LocalLink&) = delete;

  // Unique among all links of this process, past ones included.
  uint32_t id() const { return id_; }
  // At least one end takes only packets as on the wire: none larger than the path MTU, and no short
  // ACKs. One-sided access is then off in both directions.
  bool wire_packets_only() const { return wire_packets_only_; }
  void set_wire_packets_only(bool on) { wire_packets_only_ = on; }

  // The number of these addresses on this link. New addresses are announced to the peer. Returns
  // nothing if there are too many, or if the link is full.
  virtual std::optional<uint8_t> number_of(const Addresses& addresses) = 0;
  // `address` is the number of the packet's addresses.
  virtual void push(const wire::TxPacket& packet, uint8_t address) = 0;
  virtual void send_short_ack(const wire::Ack& ack, uint8_t address) = 0;
  // The link may lack space for the packets that one queue pair sends in a turn.
  virtual bool full() = 0;
  virtual bool peer_sleeps() const = 0;
  virtual bool retract(const wire::Unread& requests, uint8_t address) = 0;

 protected:
  LocalLink() : id_(next_id()) {}

 private:
  static uint32_t next_id() {
    static std::atomic<uint32_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  const uint32_t id_;
  bool wire_packets_only_ = false;
};

class LocalMedium {
 public:
  LocalMedium() = default;
  virtual ~LocalMedium() = default;
  LocalMedium(const LocalMedium&) = delete;
  LocalMedium& operator=(const LocalMedium&) = delete;

  // Requests a link to that slot. False: the process has not replied yet; call again after
  // attend(). Returns true after a timeout; the process may still reply later.
  virtual bool reach(uint8_t slot, Instant now) = 0;
  // The open link to that slot; null: none.
  LocalLink* link_to(uint8_t slot) const { return by_slot_[slot]; }
  // The link to that slot has ended, and take_gone() was not called since: queue pairs may still
  // send packets that only the link can carry.
  bool is_ending(uint8_t slot) const { return ending_[slot]; }
  virtual bool has_links() const = 0;
  // Performs a one-sided access, if possible.
  virtual bool access(LocalLink& link, const wire::OneSided& request,
                      const Addresses& addresses) = 0;
  // The peers' access to this process's memory; null: the medium carries packets only.
  virtual PeerAccess* peer_access() { return nullptr; }

  // As in Datapath.
  virtual std::span<const wire::RxPacket> receive() = 0;
  virtual std::span<const wire::RxPacket> busy_poll() = 0;
  virtual void release() = 0;
  virtual void flush() = 0;
  virtual int wait_fd() const = 0;
  virtual void append_counters(std::vector<Counter>& to) const = 0;

  // The owner is about to wait for wait_fd(), which reports packets from now on. False: packets are
  // already there.
  virtual bool arm() = 0;
  // The owner no longer waits.
  virtual void disarm() = 0;
  // This much time has passed since the last receive().
  virtual void pass(Duration time) = 0;
  // Handles peers that request a link and peers that have ended. Call receive() next.
  virtual void attend() = 0;

  // A link has ended, and all its packets have been received.
  bool anything_gone() const { return anything_gone_; }
  bool take_gone() {
    ending_.fill(false);
    return std::exchange(anything_gone_, false);
  }
  // Why packets to a process of this host do not use this medium; each reason is returned once.
  virtual std::optional<std::string> take_notice() = 0;

 protected:
  void set_link(uint8_t slot, LocalLink* link) {
    ending_[slot] = link == nullptr && by_slot_[slot] != nullptr;
    by_slot_[slot] = link;
  }
  void note_gone() { anything_gone_ = true; }

 private:
  std::array<LocalLink*, 256> by_slot_{};
  std::array<bool, 256> ending_{};
  bool anything_gone_ = false;
};

}  // namespace verbena::datapath
