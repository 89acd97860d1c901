// Steering makes the kernel deliver each packet on port 4791 to the right process among all
// processes that share the address (SO_REUSEPORT with a classic BPF program). The right process is
// the one whose slot is in the QPN; for connection messages, the one whose slot is in the
// communication ID, or the one that listens to the service.
//
// The program names a socket by its index in the group. The kernel does not report that index, and
// it changes when a member leaves (the last member moves to the free index). So the processes learn
// the indices: every program delivers a probe packet to the index written in it. A member that
// receives a probe reports its index and its services to the sender, over the slot directory. A
// process starts a round of probes when it joins and when it receives misrouted packets. A process
// that starts or stops listening to a service reports that to the others.
//
// Steering is faster than forwarding and does not depend on stopped processes: a misrouted packet
// is forwarded only while the process that received it runs. The program attached last is in force,
// so a member with little knowledge may undo the work of others. Each member therefore checks its
// own index after another member's round, and starts a round if the index is lost.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/time.h"
#include "host/index_check.h"
#include "host/slot_directory.h"
#include "host/steering_program.h"
#include "wire/identifiers.h"

namespace verbena::host {

class Steering {
 public:
  // The sockets must outlive the object. `updates` counts the attached programs. If `allowed` is
  // false, no program is attached, and misrouted packets reach their process only by forwarding.
  Steering(const LocalAddress& address, int receive_fd, int send_fd, SlotDirectory& directory,
           uint64_t& updates, bool allowed);

  // Sends a probe to every index. A process also joins the group in this way.
  void start_round(Instant now);

  // Whether a received datagram is a probe or check packet; if so, it has been handled.
  bool take_probe(std::span<const std::byte> datagram, const wire::Gid& source);
  // Called when the socket has been read until it was empty: all returned probes have been seen.
  void on_drained() { drained_ = true; }
  void on_report(const MemberReport& report);
  // Called when a packet of another slot was received: the program may be out of date.
  void on_misrouted(Instant now);
  // Schedules a check of our own index after an event that may have removed it from the program.
  void request_index_check() { index_check_requested_ = true; }
  // Called when this process's services have changed: see SlotDirectory::services_at().
  void update_services(Instant now);
  // Acts on the state. Call it from time to time, and at the deadline.
  void tick(Instant now);
  Instant deadline() const;
  // The program contains our index and services, or the kernel takes no program.
  bool is_ready() const { return is_steered_ || refused_; }
  // Slots of other processes that may share the address: the known ones, or all slots if there is
  // no program.
  std::vector<uint8_t> others() const;

 private:
  struct Member {
    int16_t index = SteeringTable::kUnknown;
    bool confirmed = false;      // in this round
    bool unreachable = false;    // a message to it could not be delivered since
    uint32_t replied_round = 0;  // its round that we replied to; one reply per round is enough
    std::vector<uint32_t> services;
  };

  void learn(uint8_t slot, uint16_t index);
  bool is_complete() const;
  int highest_index() const;
  void send_probes();
  void check_index(Instant now);
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
  Duration pause_;                    // until misrouted packets may start the next round
  uint16_t probes_ = 0;               // number of probes per round
  bool program_seen_ = false;         // a program that obeys probes is attached
  bool changed_ = false;              // there is knowledge that is not attached
  bool attach_due_ = false;           // no program was attached in this round yet
  bool refused_;                      // the kernel rejects programs, or steering is disabled
  bool is_steered_ = false;           // the attached program contains our index and services
  bool drained_ = false;              // the socket was empty since this round or check began
  bool services_steered_ = true;      // the program contains all services
  std::vector<sock_filter> program_;  // the last one that we attached
  Instant programs_charged_until_;
  bool index_check_requested_ = false;
  Instant check_at_ = kNever;
  bool checking_ = false;
  IndexCheck check_;
  uint32_t own_probes_ = 0;            // own probes that returned to us in this round
  std::array<Member, 256> members_{};  // by slot; includes this process
};

}  // namespace verbena::host
