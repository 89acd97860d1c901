// Probe rounds, and the group indices that they reveal.
#include "host/steering.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "host/local_address.h"
#include "host/steering_program.h"
#include "os/no_cancel.h"
#include "os/socket_options.h"
#include "wire/icrc.h"

namespace verbena::host {
namespace {

// A probe: a BTH with a manufacturer-specific opcode and no destination, then
//   12 'V' 'B' | 14 version | 15 asking slot | 16..17 index | 18..19 zero | 20..23 round
// It goes from an address of this host to itself and carries no ICRC.
constexpr uint8_t kProbeVersion = 1;
constexpr size_t kProbeMarkOffset = 12;
constexpr size_t kProbeSlotOffset = 15;
constexpr size_t kProbeRoundOffset = 20;
constexpr size_t kProbeBytes = 24;

constexpr uint16_t kFirstProbes = 16;
constexpr uint16_t kMaxProbes = 256;   // there are no more processes than slots
constexpr uint16_t kNoIndex = 0xFFFF;  // in a report that replies to no probe
// A member that has not replied by then is busy or stopped; the round ends without it.
constexpr Duration kReplyTimeout = milliseconds(20);
constexpr Duration kShortestPause = milliseconds(10);
constexpr Duration kLongestPause = seconds(1);
// The time after which another member's round is over, and the longest time in which our own check
// packets return.
constexpr Duration kOtherMembersRound = milliseconds(50);
constexpr Duration kSelfDelivery = milliseconds(5);
// The minimum interval between programs, except for a short burst. A kernel (Linux 6.18) that must
// free more than a thousand of them at once may never finish.
constexpr Duration kPerProgram = milliseconds(10);
constexpr Duration kProgramsAtOnce = kPerProgram * 8;
// Our clock may lag one tick behind the owner's.
constexpr Duration kClockTick = milliseconds(10);

using Probe = std::array<std::byte, kProbeBytes>;

Probe make_probe(uint8_t slot, uint16_t index, uint32_t round) {
  Probe p{};
  store_u8(p.data(), kProbeOpcode);
  store_u8(p.data() + kProbeMarkOffset, 'V');
  store_u8(p.data() + kProbeMarkOffset + 1, 'B');
  store_u8(p.data() + kProbeMarkOffset + 2, kProbeVersion);
  store_u8(p.data() + kProbeSlotOffset, slot);
  store_be16(p.data() + kProbeIndexOffset, index);
  store_be32(p.data() + kProbeRoundOffset, round);
  return p;
}

}  // namespace

Steering::Steering(const LocalAddress& address, int receive_fd, int send_fd,
                   SlotDirectory& directory, uint64_t& updates, bool allowed)
    : address_(address),
      receive_fd_(receive_fd),
      send_fd_(send_fd),
      directory_(directory),
      updates_(updates),
      pause_(kShortestPause),
      probes_(kFirstProbes),
      refused_(!allowed) {
  members_[directory_.slot()].services = directory_.services_at(address_);
}

void Steering::start_round(Instant now) {
  if (refused_) return;
  // The first number depends on the time, so that rounds of an earlier process with our slot
  // differ.
  if (round_ == 0) round_ = static_cast<uint32_t>(now.ns ^ (now.ns >> 20));
  if (++round_ == 0) ++round_;
  round_start_ = now;
  own_probes_ = 0;
  drained_ = index_check_requested_ = checking_ = false;
  check_at_ = kNever;
  attach_due_ = true;
  for (Member& m : members_) m.confirmed = m.unreachable = false;
  send_probes();
}

bool Steering::take_probe(std::span<const std::byte> datagram, const wire::Gid& source) {
  if (source == address_.gid && check_.take(datagram, directory_.slot())) return true;
  if (datagram.size() != kProbeBytes || load_u8(datagram.data()) != kProbeOpcode) return false;
  const Probe expected = make_probe(load_u8(datagram.data() + kProbeSlotOffset),
                                    load_be16(datagram.data() + kProbeIndexOffset),
                                    load_be32(datagram.data() + kProbeRoundOffset));
  if (!std::equal(expected.begin(), expected.end(), datagram.begin())) return false;
  if (source != address_.gid) return true;  // from another host

  const os::NoCancel no_cancel;
  const uint8_t sender = load_u8(datagram.data() + kProbeSlotOffset);
  const uint16_t index = load_be16(datagram.data() + kProbeIndexOffset);
  const uint32_t round = load_be32(datagram.data() + kProbeRoundOffset);
  Member& member = members_[sender];
  if (sender == directory_.slot()) {
    if (round != round_) return true;
    ++own_probes_;
    if (!member.confirmed) learn(sender, index);
  } else if (member.replied_round != round) {
    // The first probe of a round has the lowest index. An index beyond the group goes to any
    // member, so only the first probe counts.
    member.replied_round = round;
    request_index_check();
    (void)directory_.report(
        sender, {address_, round, index, directory_.slot(), members_[directory_.slot()].services});
  }
  return true;
}

void Steering::on_report(const MemberReport& report) {
  if (report.address != address_ || report.slot < kFirstSlot || report.slot > kLastSlot) return;
  Member& member = members_[report.slot];
  member.unreachable = false;
  member.services = report.services;
  if (report.round != round_ || report.index >= kMaxProbes) return;
  if (!member.confirmed) learn(report.slot, report.index);
}

void Steering::learn(uint8_t slot, uint16_t index) {
  const auto value = static_cast<int16_t>(index);
  Member& member = members_[slot];
  for (Member& other : members_) {
    if (other.index != value || &other == &member) continue;
    other.index = SteeringTable::kUnknown;  // that member has left or moved
    other.confirmed = false;
    changed_ = true;
  }
  if (member.index != value) {
    changed_ = true;
    if (slot == directory_.slot()) is_steered_ = false;
  }
  member.index = value;
  member.confirmed = true;
  // Without a program the kernel hashes all probes to one socket, which reports index 0.
  program_seen_ |= index > 0;
}

void Steering::on_misrouted(Instant now) {
  if (refused_ || round_ == 0 || now - round_start_ < pause_) return;
  pause_ = std::min(pause_ * 2, kLongestPause);  // reset when a round learns something
  start_round(now);
}

void Steering::update_services(Instant now) {
  std::vector<uint32_t> services = directory_.services_at(address_);
  Member& self = members_[directory_.slot()];
  if (self.services == services) return;
  self.services = std::move(services);
  is_steered_ = false;
  changed_ = true;
  for (const uint8_t slot : others()) {
    const Forwarded outcome =
        directory_.report(slot, {address_, 0, kNoIndex, directory_.slot(), self.services});
    if (outcome == Forwarded::NoReceiver) members_[slot] = {};
    if (outcome == Forwarded::Dropped) members_[slot].unreachable = true;
  }
  tick(now);
}

std::vector<uint8_t> Steering::others() const {
  std::vector<uint8_t> slots;
  for (uint32_t slot = kFirstSlot; slot <= kLastSlot; ++slot) {
    const Member& m = members_[slot];
    if (slot == directory_.slot()) continue;
    if (refused_ || m.index != SteeringTable::kUnknown || m.replied_round != 0) {
      slots.push_back(static_cast<uint8_t>(slot));
    }
  }
  return slots;
}

void Steering::tick(Instant now) {
  if (round_ == 0 || refused_) return;
  // A process that has not run for a while has read no replies, so its knowledge is incomplete and
  // must not be attached.
  const bool may_wait = now - round_start_ < kReplyTimeout || !drained_;
  if (!program_seen_) {
    // Either no other process is here, or none has attached a program. Attaching one is harmless
    // now; the next round then uses it.
    const bool all_returned_here = own_probes_ > 1 && members_[directory_.slot()].confirmed;
    if (!all_returned_here && may_wait) return;
    program_seen_ = true;
    attach(now);
    start_round(now);
    return;
  }
  // Another member may have attached a program that knows less. Attach ours once per round.
  if (!(changed_ || attach_due_)) return check_index(now);
  if ((may_wait && !is_complete()) || now < next_program_at()) return;
  attach(now);
  is_steered_ = true;
  if (highest_index() + 1 >= probes_ && probes_ < kMaxProbes) {
    probes_ = kMaxProbes;
    start_round(now);
  }
}

// Runs between two of our own rounds.
void Steering::check_index(Instant now) {
  if (checking_) {
    if (!drained_ || (!check_.passed() && now < check_at_ + kSelfDelivery)) return;
    checking_ = false;
    check_at_ = kNever;
    if (!check_.passed()) start_round(now);
  }
  if (index_check_requested_) {
    index_check_requested_ = false;
    check_at_ = now + kOtherMembersRound;
  }
  if (check_at_ > now) return;
  checking_ = true;
  drained_ = false;
  check_at_ = now;
  // Any service will do: a program that contains the last one contains all of them.
  const std::vector<uint32_t>& services = members_[directory_.slot()].services;
  const bool listens = services_steered_ && !services.empty();
  check_.send(send_fd_, SocketAddress::of(address_, wire::kRoceUdpPort), directory_.slot(),
              listens ? std::optional(services.back()) : std::nullopt);
}

Instant Steering::deadline() const {
  if (round_ == 0 || refused_) return kNever;
  if (!program_seen_ || changed_ || attach_due_) {
    if (!drained_ && !is_complete()) return kNever;
    return std::max(round_start_ + kReplyTimeout, next_program_at()) + kClockTick;
  }
  if (check_at_ == kNever) return kNever;
  return check_at_ + kClockTick + (checking_ ? kSelfDelivery : Duration{});
}

// Whether every member up to the highest index has replied in this round.
bool Steering::is_complete() const {
  return members_[directory_.slot()].confirmed &&
         std::ranges::count(members_, true, &Member::confirmed) == highest_index() + 1;
}

int Steering::highest_index() const {
  int highest = 0;
  for (const Member& m : members_) {
    if (m.confirmed) highest = std::max<int>(highest, m.index);
  }
  return highest;
}

void Steering::send_probes() {
  const SocketAddress to = SocketAddress::of(address_, wire::kRoceUdpPort);
  for (uint16_t index = 0; index < probes_; ++index) {
    const Probe probe = make_probe(directory_.slot(), index, round_);
    if (!send_one(send_fd_, to, probe)) return;  // forwarding continues until a later round
  }
}

// Packets without a known owner go to the lowest slot whose process is known to run.
int16_t Steering::fallback() const {
  const auto runs = [](const Member& m) { return m.confirmed && !m.unreachable; };
  const auto lowest = std::ranges::find_if(members_, runs);
  return lowest != members_.end() ? lowest->index : members_[directory_.slot()].index;
}

Instant Steering::next_program_at() const {
  return {programs_charged_until_.ns - kProgramsAtOnce.ns};
}

bool Steering::attach(const SteeringTable& table) {
  std::vector<sock_filter> code = steering_program(table);
  const auto same = [](const sock_filter& a, const sock_filter& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
  };
  // During a round another member may have replaced the program, so an equal one is attached again.
  if (!attach_due_ && std::ranges::equal(code, program_, same)) return true;
  sock_fprog program;
  std::memset(&program, 0, sizeof program);  // includes the padding, for memory checkers
  program.len = static_cast<unsigned short>(code.size());
  program.filter = code.data();
  if (!os::set_option(receive_fd_, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)) {
    return false;
  }
  ++updates_;
  program_ = std::move(code);
  return true;
}

void Steering::attach(Instant now) {
  SteeringTable table;
  table.fallback = fallback();
  for (size_t slot = 0; slot < members_.size(); ++slot) {
    const Member& m = members_[slot];
    table.index_of_slot[slot] = m.index;
    // The fallback receives its own services anyway. The only member of a group lists none.
    if (m.index == SteeringTable::kUnknown || m.index == table.fallback) continue;
    for (const uint32_t service : m.services) table.services.emplace_back(service, m.index);
  }
  services_steered_ = table.services.size() <= kMaxSteeredServices;
  const uint64_t before = updates_;
  bool attached = attach(table);
  if (!attached && !table.services.empty()) {  // longer than this host's limit
    table.services.clear();
    attached = attach(table);
    services_steered_ = false;
  }
  refused_ = !attached && program_.empty();
  if (attached && changed_) pause_ = kShortestPause;
  if (updates_ != before)
    programs_charged_until_ = std::max(programs_charged_until_, now) + kPerProgram;
  changed_ = false;
  attach_due_ = false;
}

}  // namespace verbena::host
