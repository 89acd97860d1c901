// ShmDatapath: the links of a process. It opens and accepts them, and receives from them round
// robin. It reaches only processes of this host, and not all of them, so it is a LocalMedium, which
// SelectingDatapath combines with UDP.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "datapath/peer_access.h"
#include "datapath/registry.h"
#include "datapath/shm/handshake.h"
#include "datapath/shm/link.h"
#include "datapath/shm/revoked_copies.h"
#include "host/unix_listener.h"

namespace verbena::datapath {

class ShmDatapath final : public LocalMedium, public PeerAccess {
 public:
  // Listens for connections to the slot of `self`, which the caller has claimed. `interface_index`
  // is the scope of link-local addresses.
  static Result<std::unique_ptr<ShmDatapath>> open(const HandshakeInfo& self,
                                                   uint32_t interface_index);
  // For the registry (registry.cc).
  static Result<std::unique_ptr<LocalMedium>> open_medium(const LocalMediumOptions& options);
  ~ShmDatapath() override;

  bool reach(uint8_t slot, Instant now) override;
  Link* link_to(uint8_t slot) const { return by_slot_[slot]; }  // null: none
  bool has_links() const override { return !links_.empty(); }

  OwnExposure& exposure() override { return exposure_; }
  bool take_withdrawn(wire::Qpn qpn) override { return exposure_.take_withdrawn(qpn); }
  PeerAccess* peer_access() override { return this; }
  bool access(LocalLink& link, const wire::OneSided& request, const Addresses& addresses) override;
  void revoke_copies(const MemoryRange& withdrawn, RevokedCopies& to) override;
  void revoke_copies_of(uint8_t slot, RevokedCopies& to) override;
  bool is_over(const RevokedCopy& copy) override;
  void note_ended(const RevokedCopy& copy) override;
  void end_link_of(const RevokedCopy& copy) override;
  void withdraw_all() override { exposure_.close(); }

  std::span<const wire::RxPacket> receive() override;
  std::span<const wire::RxPacket> busy_poll() override;
  void release() override;
  void flush() override;
  int wait_fd() const override { return epoll_.get(); }
  void append_counters(std::vector<Counter>& to) const override;

  bool arm() override;
  void disarm() override;
  // The next attend() of receive() is due sooner.
  void pass(Duration time) override {
    receives_since_attend_ +=
        static_cast<uint32_t>(std::min<int64_t>(time.ns / 1024, kAttendEvery));
  }
  // Handles handshakes and ended peers. New links may already have packets, so call receive() next.
  void attend() override;

  std::optional<std::string> take_notice() override;

 private:
  // The interval of attend() in calls of receive(). A longer interval would delay new links, a
  // shorter one would slow down polling. A microsecond counts as one call.
  static constexpr uint32_t kAttendEvery = 2048;

  // A process that has not replied to our handshake yet.
  struct PendingHandshake {
    uint8_t slot;
    os::UniqueFd socket;
    Segment segment;
    Instant since;
  };
  enum class Reason : uint8_t { NotListening, OtherUser, Refused, NoMemory, Broken, Denied };

  ShmDatapath(const HandshakeInfo& self, uint32_t interface_index, OwnExposure exposure,
              host::UnixListener listener, os::UniqueFd epoll);
  void open_own_link();
  void connect(uint8_t slot, Instant now);
  void attend(int fd);
  void accept_connections();
  bool read_handshake(int fd);
  void accept_handshake(os::UniqueFd socket, const HandshakeInfo& peer,
                        const Descriptors& descriptors);
  void read_reply(size_t index);
  void enable_access(const HandshakeInfo& info, int exposure);
  HandshakeInfo own_info() const {
    return {.slot = slot_, .wire_packets_only = wire_packets_only_};
  }
  void open_link(uint8_t slot, os::UniqueFd socket, os::UniqueFd wake_fd, Segment segment,
                 const RingMemory& written, const RingMemory& read);
  void end_link(Link& link);
  Link* find_link(uint32_t id) const;
  static void revoke_copy(Link& link, const MemoryRange& withdrawn, RevokedCopies& to);
  void remove_ended();
  bool watch(int fd);
  void close_socket(os::UniqueFd& fd);
  void report(Reason reason, uint8_t slot);
  size_t find_pending(uint8_t slot) const;

  const uint8_t slot_;
  const bool wire_packets_only_;
  const uint32_t interface_index_;
  ShmCounters counters_;
  OwnExposure exposure_;
  bool permitted_peers_ = false;
  os::UniqueFd epoll_;  // of all sockets
  host::UnixListener listener_;
  std::vector<os::UniqueFd> unidentified_;  // accepted connections without a handshake yet
  std::vector<PendingHandshake> pending_;
  std::vector<std::unique_ptr<Link>> links_;
  std::array<Link*, 256> by_slot_{};  // the open ones
  RxBatch batch_;
  size_t next_link_ = 0;  // the first one to receive from
  uint32_t polls_ = 64;   // of a busy poll
  bool burst_ = false;    // the latest batch was one
  uint32_t receives_since_attend_ = 0;
  bool armed_ = false;
  bool has_ended_links_ = false;  // among links_
  uint32_t reported_ = 0;         // bit set of Reason
  std::optional<std::string> notice_;
};

}  // namespace verbena::datapath
