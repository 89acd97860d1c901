// LocalMedium: a way to the processes of this host beside UDP. SelectingDatapath chooses a medium
// for each packet and knows no more of it than this. local_media.h lists the media there are.
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

// Which end of a path is where.
struct Addresses {
  wire::Gid source;
  wire::Gid destination;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  bool operator==(const Addresses&) const = default;
};

// The way to one process and back. wire::LocalPeer says what the functions mean.
class LocalLink {
 public:
  virtual ~LocalLink() = default;
  LocalLink(const LocalLink&) = delete;
  LocalLink& operator=(const LocalLink&) = delete;

  // No other link of this process has it, nor had.
  uint32_t id() const { return id_; }
  // One of both ends takes packets alone, as they would be on the wire: none larger than the path
  // MTU, and no ACK in its short form. Neither reaches the other's memory then.
  bool wire_packets_only() const { return wire_packets_only_; }
  void set_wire_packets_only(bool on) { wire_packets_only_ = on; }

  // The number that stands for these addresses on this link; new ones are announced to the peer.
  // Nothing: there are too many, or the link is full.
  virtual std::optional<uint8_t> number_of(const Addresses& addresses) = 0;
  // `address` is the number of the packet's addresses.
  virtual void push(const wire::TxPacket& packet, uint8_t address) = 0;
  virtual void send_short_ack(const wire::Ack& ack, uint8_t address) = 0;
  // There may not be room for all that one queue pair sends in a turn.
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

  // Asks for a link to that slot. False: its process has been asked and has not replied yet; ask
  // again, after attend(). A process that is silent for long is not waited for, but may reply
  // later.
  virtual bool reach(uint8_t slot, Instant now) = 0;
  // The open link to that slot; null: none.
  LocalLink* link_to(uint8_t slot) const { return by_slot_[slot]; }
  virtual bool has_links() const = 0;
  // Does it in the peer's memory, if it can.
  virtual bool access(LocalLink& link, const wire::OneSided& request,
                      const Addresses& addresses) = 0;
  // What peers do in the memory of this process; null: the medium carries packets only.
  virtual PeerAccess* peer_access() { return nullptr; }

  // As Datapath has them.
  virtual std::span<const wire::RxPacket> receive() = 0;
  virtual std::span<const wire::RxPacket> busy_poll() = 0;
  virtual void release() = 0;
  virtual void flush() = 0;
  virtual int wait_fd() const = 0;
  virtual void append_counters(std::vector<Counter>& to) const = 0;

  // The owner is about to wait for wait_fd(), which from now on shows when something comes. False:
  // something is there already.
  virtual bool arm() = 0;
  // It waits no longer.
  virtual void disarm() = 0;
  // So much time has passed since the last receive().
  virtual void pass(Duration time) = 0;
  // Looks after peers that ask for a link, and peers that ended. receive() comes next.
  virtual void attend() = 0;

  // A link has ended, and all that had come of it was taken.
  bool anything_gone() const { return anything_gone_; }
  bool take_gone() { return std::exchange(anything_gone_, false); }
  // Why packets to a process of this host do not take this medium: once for each reason.
  virtual std::optional<std::string> take_notice() = 0;

 protected:
  void set_link(uint8_t slot, LocalLink* link) { by_slot_[slot] = link; }
  void note_gone() { anything_gone_ = true; }

 private:
  std::array<LocalLink*, 256> by_slot_{};
  bool anything_gone_ = false;
};

}  // namespace verbena::datapath
