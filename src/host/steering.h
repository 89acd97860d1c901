// Asks the kernel to give each packet on port 4791 to the process it is for, among all processes
// that share the address (SO_REUSEPORT with a classic BPF program): the one whose slot is in its
// QPN; for connection messages, the one whose slot is in the communication id, or that listens to
// the service.
//
// The program must name a socket by its index in the group, which nobody tells, and which changes
// when a member leaves (the last one moves into its place). So indices are learned: every program
// passes a probe packet to the index written in it; a member that gets one tells the asker, over
// the slot directory, where it was found and which services it listens to. Whoever joins or sees
// strays asks; whoever begins or ceases to listen tells. All of this makes things fast, and
// independent of processes that are stopped: a packet that arrives at the wrong process is
// forwarded, but only while that process runs. Since the last program attached is the one that
// counts, whoever knew little when it attached its own would undo what others did: so everybody
// checks its own place after another's round, and asks anew if it was lost.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/time.h"
#include "host/place_check.h"
#include "host/slot_directory.h"
#include "host/steering_program.h"
#include "wire/identifiers.h"

namespace verbena::host {

class Steering {
 public:
  // The sockets must outlive it. `updates` counts the programs attached. Not `allowed`: it never
  // attaches one, and packets reach the right process only by being forwarded.
  Steering(const LocalAddress& address, int receive_fd, int send_fd, SlotDirectory& directory,
           uint64_t& updates, bool allowed);

  // Asks all members where they are. Also the way to join.
  void start_round(Instant now);

  // Whether a received datagram is a probe rather than a packet; then it is dealt with.
  bool take_probe(std::span<const std::byte> datagram, const wire::Gid& source);
  // The socket was read until it was empty: what came back of our probes has been seen.
  void on_drained() { drained_ = true; }
  void on_report(const MemberReport& report);
  // A packet of another slot came to us, so the program may be out of date.
  void on_stray(Instant now);
  // Something happened by which we may have lost our place: look, in a moment.
  void doubt_place() { doubts_ = true; }
  // What this process listens to has changed: see SlotDirectory::services_at().
  void update_services(Instant now);
  // Acts on what has been learned. Call it now and then, and at the deadline.
  void tick(Instant now);
  Instant deadline() const;
  // The kernel knows where we are and what we listen to, or it will never know.
  bool settled() const { return placed_ || refused_; }
  // Slots of other processes that share the address, as far as is known. Without a program nothing
  // is: then all that there may be.
  std::vector<uint8_t> others() const;

 private:
  struct Member {
    int16_t index = SteeringTable::kUnknown;
    bool confirmed = false;       // in this round
    bool deaf = false;            // since then a message could not be delivered
    uint32_t answered_round = 0;  // of its rounds: one answer a round is enough
    std::vector<uint32_t> services;
  };

  void learn(uint8_t slot, uint16_t index);
  bool is_complete() const;
  int highest_index() const;
  void send_probes();
  void check_place(Instant now);
  int16_t fallback() const;
  bool attach(const SteeringTable& table);
  void attach(Instant now);
  Instant next_program_at() const;

  const LocalAddress address_;
  const int receive_fd_;
  const int send_fd_;
  SlotDirectory& directory_;
  uint64_t& updates_;

  uint32_t round_ = 0;  // 0: none yet
  Instant round_start_;
  Duration pause_;                    // until strays may start the next round
  uint16_t probes_ = 0;               // indices asked for in a round
  bool program_seen_ = false;         // the group obeys probes
  bool changed_ = false;              // learned something that is not attached
  bool attach_due_ = false;           // nothing was attached in this round yet
  bool refused_;                      // the kernel takes no program, or may not be asked
  bool placed_ = false;               // what is attached has our place and our services
  bool drained_ = false;              // the socket was empty since this round, or check, began
  bool services_steered_ = true;      // the program had room for all services
  std::vector<sock_filter> program_;  // the last that we attached
  Instant programs_paid_until_;
  bool doubts_ = false;
  Instant check_at_ = kNever;
  bool checking_ = false;
  PlaceCheck check_;
  uint32_t own_probes_ = 0;            // that came back to ourselves in this round
  std::array<Member, 256> members_{};  // by slot; our own too
};

}  // namespace verbena::host
