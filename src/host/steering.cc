// Probes, and what is learned from their answers.
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
#include "wire/icrc.h"

#ifndef SO_ATTACH_REUSEPORT_CBPF
#define SO_ATTACH_REUSEPORT_CBPF 51
#endif

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
constexpr uint16_t kMostProbes = 256;  // no more processes than slots
constexpr uint16_t kNoIndex = 0xFFFF;  // in a report that answers no probe
// A member that has not answered by then is busy or stopped; the others need not wait.
constexpr Duration kPatience = milliseconds(20);
constexpr Duration kShortestPause = milliseconds(10);
constexpr Duration kLongestPause = seconds(1);
// When a round of another member is over, and how long our own packets may take to come back.
constexpr Duration kForeignRound = milliseconds(50);
constexpr Duration kOwnWay = milliseconds(5);
// Programs are not replaced faster than this, but for a few at once: a kernel (Linux 6.18) that has
// more than a thousand of them to free at the same time may never get to an end with it.
constexpr Duration kPerProgram = milliseconds(10);
constexpr Duration kProgramsAtOnce = kPerProgram * 8;
// The owner's clock may be a tick ahead of ours.
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
  // Rounds of an earlier process with our slot must not be taken for ours.
  if (round_ == 0) round_ = static_cast<uint32_t>(now.ns ^ (now.ns >> 20));
  if (++round_ == 0) ++round_;
  round_start_ = now;
  own_probes_ = 0;
  drained_ = doubts_ = checking_ = false;
  check_at_ = kNever;
  attach_due_ = true;
  for (Member& m : members_) m.confirmed = m.deaf = false;
  send_probes();
}

bool Steering::take_probe(std::span<const std::byte> datagram, const wire::Gid& source) {
  if (source == address_.gid && check_.take(datagram, directory_.slot())) return true;
  if (datagram.size() != kProbeBytes || load_u8(datagram.data()) != kProbeOpcode) return false;
  const Probe expected = make_probe(load_u8(datagram.data() + kProbeSlotOffset),
                                    load_be16(datagram.data() + kProbeIndexOffset),
                                    load_be32(datagram.data() + kProbeRoundOffset));
  if (!std::equal(expected.begin(), expected.end(), datagram.begin())) return false;
  if (source != address_.gid) return true;  // someone outside plays with us

  const os::NoCancel no_cancel;
  const uint8_t asker = load_u8(datagram.data() + kProbeSlotOffset);
  const uint16_t index = load_be16(datagram.data() + kProbeIndexOffset);
  const uint32_t round = load_be32(datagram.data() + kProbeRoundOffset);
  Member& member = members_[asker];
  if (asker == directory_.slot()) {
    if (round != round_) return true;
    ++own_probes_;
    if (!member.confirmed) learn(asker, index);
  } else if (member.answered_round != round) {
    // The first probe of a round is the lowest: an index that does not exist goes anywhere.
    member.answered_round = round;
    doubt_place();
    (void)directory_.report(
        asker, {address_, round, index, directory_.slot(), members_[directory_.slot()].services});
  }
  return true;
}

void Steering::on_report(const MemberReport& report) {
  if (report.address != address_ || report.slot < kFirstSlot || report.slot > kLastSlot) return;
  Member& member = members_[report.slot];
  member.deaf = false;
  member.services = report.services;
  if (report.round != round_ || report.index >= kMostProbes) return;
  if (!member.confirmed) learn(report.slot, report.index);
}

void Steering::learn(uint8_t slot, uint16_t index) {
  const auto value = static_cast<int16_t>(index);
  Member& member = members_[slot];
  for (Member& other : members_) {
    if (other.index != value || &other == &member) continue;
    other.index = SteeringTable::kUnknown;  // who was there is gone or has moved
    other.confirmed = false;
    changed_ = true;
  }
  if (member.index != value) {
    changed_ = true;
    if (slot == directory_.slot()) placed_ = false;
  }
  member.index = value;
  member.confirmed = true;
  // Without a program all probes go to one socket, by hash, and that one answers to index 0.
  program_seen_ |= index > 0;
}

void Steering::on_stray(Instant now) {
  if (refused_ || round_ == 0 || now - round_start_ < pause_) return;
  pause_ = std::min(pause_ * 2, kLongestPause);  // shorter again when a round has taught something
  start_round(now);
}

void Steering::update_services(Instant now) {
  std::vector<uint32_t> services = directory_.services_at(address_);
  Member& self = members_[directory_.slot()];
  if (self.services == services) return;
  self.services = std::move(services);
  placed_ = false;
  changed_ = true;
  for (const uint8_t slot : others()) {
    const Forwarded outcome =
        directory_.report(slot, {address_, 0, kNoIndex, directory_.slot(), self.services});
    if (outcome == Forwarded::Nobody) members_[slot] = {};
    if (outcome == Forwarded::Dropped) members_[slot].deaf = true;
  }
  tick(now);
}

std::vector<uint8_t> Steering::others() const {
  std::vector<uint8_t> slots;
  for (uint32_t slot = kFirstSlot; slot <= kLastSlot; ++slot) {
    const Member& m = members_[slot];
    if (slot == directory_.slot()) continue;
    if (refused_ || m.index != SteeringTable::kUnknown || m.answered_round != 0) {
      slots.push_back(static_cast<uint8_t>(slot));
    }
  }
  return slots;
}

void Steering::tick(Instant now) {
  if (round_ == 0 || refused_) return;
  // Whoever did not run for a while has learned nothing, and must not tell the kernel so.
  const bool patient = now - round_start_ < kPatience || !drained_;
  if (!program_seen_) {
    // Alone, or nobody has attached a program yet. Attaching one harms nobody now; ask again with
    // it.
    const bool all_came_here = own_probes_ > 1 && members_[directory_.slot()].confirmed;
    if (!all_came_here && patient) return;
    program_seen_ = true;
    attach(now);
    start_round(now);
    return;
  }
  // Another member may have attached what it knew, which may be less: once a round, say what we
  // know.
  if (!(changed_ || attach_due_)) return check_place(now);
  if ((patient && !is_complete()) || now < next_program_at()) return;
  attach(now);
  placed_ = true;
  if (highest_index() + 1 >= probes_ && probes_ < kMostProbes) {
    probes_ = kMostProbes;
    start_round(now);
  }
}

// Between two rounds of ours.
void Steering::check_place(Instant now) {
  if (checking_) {
    if (!drained_ || (!check_.passed() && now < check_at_ + kOwnWay)) return;
    checking_ = false;
    check_at_ = kNever;
    if (!check_.passed()) start_round(now);
  }
  if (doubts_) {
    doubts_ = false;
    check_at_ = now + kForeignRound;
  }
  if (check_at_ > now) return;
  checking_ = true;
  drained_ = false;
  check_at_ = now;
  // Which of the services does not matter: who knows the last one knows them all.
  const std::vector<uint32_t>& services = members_[directory_.slot()].services;
  const bool listens = services_steered_ && !services.empty();
  check_.send(send_fd_, SocketAddress::of(address_, wire::kRoceUdpPort), directory_.slot(),
              listens ? std::optional(services.back()) : std::nullopt);
}

Instant Steering::deadline() const {
  if (round_ == 0 || refused_) return kNever;
  if (!program_seen_ || changed_ || attach_due_) {
    if (!drained_ && !is_complete()) return kNever;
    return std::max(round_start_ + kPatience, next_program_at()) + kClockTick;
  }
  if (check_at_ == kNever) return kNever;
  return check_at_ + kClockTick + (checking_ ? kOwnWay : Duration{});
}

// Whether everyone up to the highest index has answered in this round.
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
    if (!send_one(send_fd_, to, probe)) return;  // then packets are forwarded for longer
  }
}

// What is for nobody in particular goes to the lowest slot whose process is known to run.
int16_t Steering::fallback() const {
  const auto runs = [](const Member& m) { return m.confirmed && !m.deaf; };
  const auto lowest = std::ranges::find_if(members_, runs);
  return lowest != members_.end() ? lowest->index : members_[directory_.slot()].index;
}

Instant Steering::next_program_at() const { return {programs_paid_until_.ns - kProgramsAtOnce.ns}; }

bool Steering::attach(const SteeringTable& table) {
  std::vector<sock_filter> code = steering_program(table);
  const auto same = [](const sock_filter& a, const sock_filter& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
  };
  // In a round others may have attached theirs.
  if (!attach_due_ && std::ranges::equal(code, program_, same)) return true;
  sock_fprog program;
  std::memset(&program, 0, sizeof program);  // the padding too: memory checkers look at it
  program.len = static_cast<unsigned short>(code.size());
  program.filter = code.data();
  if (::setsockopt(receive_fd_, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) !=
      0) {
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
    // What goes to the fallback anyway need not be said: whoever is alone never says more.
    if (m.index == SteeringTable::kUnknown || m.index == table.fallback) continue;
    for (const uint32_t service : m.services) table.services.emplace_back(service, m.index);
  }
  services_steered_ = table.services.size() <= kMostSteeredServices;
  const uint64_t before = updates_;
  bool attached = attach(table);
  if (!attached && !table.services.empty()) {  // too long for this host's limits
    table.services.clear();
    attached = attach(table);
    services_steered_ = false;
  }
  refused_ = !attached && program_.empty();
  if (attached && changed_) pause_ = kShortestPause;
  if (updates_ != before) programs_paid_until_ = std::max(programs_paid_until_, now) + kPerProgram;
  changed_ = false;
  attach_due_ = false;
}

}  // namespace verbena::host
