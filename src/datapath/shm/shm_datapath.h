// The links of a process: calling others, answering their calls, and turning to each in its turn.
// Not a Datapath by itself: it reaches the processes of this host alone, and not even all of them.
// SelectingDatapath puts it, as a LocalMedium, beside UDP.
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
#include "datapath/local_media.h"
#include "datapath/peer_access.h"
#include "datapath/shm/handshake.h"
#include "datapath/shm/link.h"
#include "datapath/shm/revoked_copies.h"
#include "host/unix_listener.h"

namespace verbena::datapath {

class ShmDatapath final : public LocalMedium, public PeerAccess {
 public:
  // Listens for calls to the slot of `self`, which the caller has claimed. `interface_index` gives
  // link-local addresses their meaning.
  static Result<std::unique_ptr<ShmDatapath>> open(const HandshakeInfo& self,
                                                   uint32_t interface_index);
  // For the registry (local_media.cc).
  static Result<std::unique_ptr<LocalMedium>> open_medium(const LocalMediumOptions& options);
  ~ShmDatapath() override;

  // Wants a link to that slot. False: its process has been called and has not answered yet; ask
  // again, after attend(). A process that is silent for long is not waited for, but may answer
  // later.
  bool reach(uint8_t slot, Instant now) override;
  // The open link to that slot, if there is one.
  Link* link_to(uint8_t slot) const { return by_slot_[slot]; }  // as its own type
  bool has_links() const override { return !links_.empty(); }

  // What this process permits its peers.
  OwnExposure& exposure() override { return exposure_; }
  MemoryRange take_withdrawn_memory() override { return exposure_.take_withdrawn_memory(); }
  bool take_withdrawn(wire::Qpn qpn) override { return exposure_.take_withdrawn(qpn); }
  PeerAccess* peer_access() override { return this; }
  // Does it in the peer's memory, if it can.
  bool access(LocalLink& link, const wire::OneSided& request, const Addresses& addresses) override;
  // After something was withdrawn: revokes what peers are doing in our memory at this moment, all
  // of them or the process of a slot. Adds the copies that the kernel may be copying for.
  void revoke_copies(const MemoryRange& withdrawn, RevokedCopies& to) override;
  void revoke_copies_of(uint8_t slot, RevokedCopies& to) override;
  // It is over, or its process gone.
  bool is_over(const RevokedCopy& copy) override;
  // It is known that it does not copy any more. Nobody waits for it again.
  void settle(const RevokedCopy& copy) override;
  // It does not end. The link to its process does: packets go over UDP.
  void end_link_of(const RevokedCopy& copy) override;
  // Permits nothing any more.
  void withdraw_all() override { exposure_.close(); }

  // As Datapath has them.
  std::span<const wire::RxPacket> receive() override;
  std::span<const wire::RxPacket> busy_poll() override;
  void release() override;
  void flush() override;
  int wait_fd() const override { return epoll_.get(); }
  void append_counters(std::vector<Counter>& to) const override;

  // The owner is about to wait for wait_fd(), which from now on shows when something comes. False:
  // something is there already.
  bool arm() override;
  // It waits no longer.
  void disarm() override;
  // So much since the receive() before, which attends to others the sooner.
  void pass(Duration time) override {
    calls_since_attended_ += static_cast<uint32_t>(std::min<int64_t>(time.ns / 1024, kAttendEvery));
  }
  // Looks after calls, and peers that ended. Links that it opens may have brought something:
  // receive() comes next.
  void attend() override;

  // Why packets to a process of this host do not go through memory: once for each reason.
  std::optional<std::string> take_notice() override;

 private:
  // An application that polls is to notice new calls and ended peers, but not to pay for it. A
  // microsecond counts as a call of receive().
  static constexpr uint32_t kAttendEvery = 2048;

  // A process that was called and has not answered.
  struct Call {
    uint8_t slot;
    os::UniqueFd socket;
    Segment segment;
    Instant since;
  };
  enum class Reason : uint8_t { NobodyListens, OtherUser, Refused, NoMemory, Broken, Denied };

  ShmDatapath(const HandshakeInfo& self, uint32_t interface_index, OwnExposure exposure,
              host::UnixListener listener, os::UniqueFd epoll);
  void open_loop();
  void call(uint8_t slot, Instant now);
  void attend(int fd);
  void answer_calls();
  bool read_handshake(int fd);
  void accept_handshake(os::UniqueFd socket, const HandshakeInfo& caller,
                        const Descriptors& descriptors);
  void read_answer(size_t call);
  void allow_access(const HandshakeInfo& said, int exposure);
  HandshakeInfo greeting() const {
    return {.slot = slot_, .wire_packets_only = wire_packets_only_};
  }
  void open_link(uint8_t slot, os::UniqueFd socket, os::UniqueFd bell, Segment segment,
                 const RingMemory& written, const RingMemory& read);
  void end_link(Link& link);
  Link* find_link(uint32_t id) const;
  static void revoke_copy(Link& link, const MemoryRange& withdrawn, RevokedCopies& to);
  void remove_ended();
  bool watch(int fd);
  void forget(os::UniqueFd& fd);
  void tell(Reason reason, uint8_t slot);
  size_t call_to(uint8_t slot) const;

  const uint8_t slot_;
  const bool wire_packets_only_;
  const uint32_t interface_index_;
  ShmCounters counters_;
  OwnExposure exposure_;
  bool permitted_peers_ = false;
  os::UniqueFd epoll_;  // of all sockets
  host::UnixListener listener_;
  std::vector<os::UniqueFd> greeting_;  // have called us and said nothing yet
  std::vector<Call> calls_;
  std::vector<std::unique_ptr<Link>> links_;
  std::array<Link*, 256> by_slot_{};  // the open ones
  RxBatch batch_;
  size_t turn_ = 0;      // whose packets are taken first
  uint32_t looks_ = 64;  // while lingering
  bool burst_ = false;   // what came last came together
  uint32_t calls_since_attended_ = 0;
  bool armed_ = false;
  bool anything_ended_ = false;  // among links_
  uint32_t told_ = 0;            // a bit per Reason
  std::optional<std::string> notice_;
};

}  // namespace verbena::datapath
