// Asks the kernel to give each packet on port 4791 to the process whose slot is in its QPN, among
// all processes that share the address (SO_REUSEPORT with a classic BPF program).
//
// The program must name a socket by its index in the group, which nobody tells, and which changes
// when a member leaves (the last one moves into its place). So indices are learned: every program
// passes a probe packet to the index written in it; a member that gets one tells the asker, over
// the slot directory, where it was found. Whoever joins or sees strays asks. All of this only makes
// things fast: a packet that arrives at the wrong process is forwarded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.h"
#include "datapath/udp/slot_directory.h"
#include "wire/identifiers.h"

namespace verbena::datapath {

class Steering {
 public:
  // The sockets must outlive it. `updates` counts the programs attached.
  Steering(const LocalAddress& address, int receive_fd, int send_fd, SlotDirectory& directory,
           uint64_t& updates);

  // Asks all members where they are. Also the way to join.
  void start_round(Instant now);

  // Whether a received datagram is a probe rather than a packet; then it is dealt with.
  bool take_probe(std::span<const std::byte> datagram, const wire::Gid& source);
  void on_report(const IndexReport& report);
  // A packet of another slot came to us, so the program may be out of date.
  void on_stray(Instant now);
  // Acts on what has been learned. Call it now and then.
  void tick(Instant now);
  // The kernel knows what we know.
  bool settled() const { return program_seen_ && !changed_ && !attach_due_; }

 private:
  static constexpr int16_t kUnknown = -1;

  void learn(uint8_t slot, uint16_t index);
  bool is_complete() const;
  int highest_index() const;
  void send_probes();
  void attach();

  const LocalAddress address_;
  const int receive_fd_;
  const int send_fd_;
  SlotDirectory& directory_;
  uint64_t& updates_;

  uint32_t round_ = 0;  // 0: none yet
  Instant round_start_;
  Duration pause_;             // until strays may start the next round
  uint16_t probes_ = 0;        // indices asked for in a round
  bool program_seen_ = false;  // the group obeys probes
  bool changed_ = false;       // learned something that is not attached
  bool attach_due_ = false;    // nothing was attached in this round yet
  uint32_t own_probes_ = 0;    // that came back to ourselves in this round
  std::array<int16_t, 256> index_of_slot_;
  std::array<bool, 256> confirmed_{};           // in this round
  std::array<uint32_t, 256> answered_round_{};  // per asking slot: one answer a round is enough
};

}  // namespace verbena::datapath
