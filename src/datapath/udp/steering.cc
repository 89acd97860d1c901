// Probes, what is learned from their answers, and the BPF program made of that.
#include "datapath/udp/steering.h"

#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "datapath/udp/udp_socket.h"
#include "wire/icrc.h"

#ifndef SO_ATTACH_REUSEPORT_CBPF
#define SO_ATTACH_REUSEPORT_CBPF 51
#endif

namespace verbena::datapath {
namespace {

// A probe: a BTH with a manufacturer-specific opcode and no destination, then
//   12 'V' 'B' | 14 version | 15 asking slot | 16..17 index | 18..19 zero | 20..23 round
// It goes from an address of this host to itself and carries no ICRC.
constexpr uint8_t kProbeOpcode = 0xFF;
constexpr uint8_t kProbeVersion = 1;
constexpr size_t kProbeMarkOffset = 12;
constexpr size_t kProbeSlotOffset = 15;
constexpr size_t kProbeIndexOffset = 16;
constexpr size_t kProbeRoundOffset = 20;
constexpr size_t kProbeBytes = 24;
constexpr size_t kQpnOffset = 5;  // in the BTH; its top byte is the slot

constexpr uint16_t kFirstProbes = 16;
constexpr uint16_t kMostProbes = 256;  // no more processes than slots
// A member that has not answered by then is busy or stopped; the others need not wait.
constexpr Duration kPatience = milliseconds(20);
constexpr Duration kShortestPause = milliseconds(10);
constexpr Duration kLongestPause = seconds(1);
constexpr uint32_t kNoSocket = 0xFFFFFFFF;  // the kernel then chooses by hash

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

constexpr sock_filter statement(int code, uint32_t k) {
  return {static_cast<uint16_t>(code), 0, 0, k};
}
constexpr sock_filter jump(int code, uint32_t k, uint8_t if_true, uint8_t if_false) {
  return {static_cast<uint16_t>(code), if_true, if_false, k};
}

// Offset 0 is the UDP payload's first byte; the result is a socket's index.
std::vector<sock_filter> program_for(const std::array<int16_t, 256>& index_of_slot) {
  std::vector<sock_filter> p = {
      statement(BPF_LD | BPF_B | BPF_ABS, 0),
      jump(BPF_JMP | BPF_JEQ | BPF_K, kProbeOpcode, 0, 2),
      statement(BPF_LD | BPF_H | BPF_ABS, kProbeIndexOffset),
      statement(BPF_RET | BPF_A, 0),
      statement(BPF_LD | BPF_B | BPF_ABS, kQpnOffset),
  };
  const auto send_slot_to = [&](uint32_t slot, int16_t index) {
    p.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, slot, 0, 1));
    p.push_back(statement(BPF_RET | BPF_K, static_cast<uint32_t>(index)));
  };
  bool lowest = true;
  for (uint32_t slot = kFirstSlot; slot <= kLastSlot; ++slot) {
    if (index_of_slot[slot] < 0) continue;
    send_slot_to(slot, index_of_slot[slot]);
    if (lowest) send_slot_to(0, index_of_slot[slot]);  // QP0 and QP1 are the lowest slot's
    lowest = false;
  }
  p.push_back(statement(BPF_RET | BPF_K, kNoSocket));
  return p;
}

}  // namespace

Steering::Steering(const LocalAddress& address, int receive_fd, int send_fd,
                   SlotDirectory& directory, uint64_t& updates)
    : address_(address),
      receive_fd_(receive_fd),
      send_fd_(send_fd),
      directory_(directory),
      updates_(updates),
      pause_(kShortestPause),
      probes_(kFirstProbes) {
  index_of_slot_.fill(kUnknown);
}

void Steering::start_round(Instant now) {
  // Rounds of an earlier process with our slot must not be taken for ours.
  if (round_ == 0) round_ = static_cast<uint32_t>(now.ns ^ (now.ns >> 20));
  if (++round_ == 0) ++round_;
  round_start_ = now;
  own_probes_ = 0;
  attach_due_ = true;
  confirmed_.fill(false);
  send_probes();
}

bool Steering::take_probe(std::span<const std::byte> datagram, const wire::Gid& source) {
  if (datagram.size() != kProbeBytes || load_u8(datagram.data()) != kProbeOpcode) return false;
  const Probe expected = make_probe(load_u8(datagram.data() + kProbeSlotOffset),
                                    load_be16(datagram.data() + kProbeIndexOffset),
                                    load_be32(datagram.data() + kProbeRoundOffset));
  if (!std::equal(expected.begin(), expected.end(), datagram.begin())) return false;
  if (source != address_.gid) return true;  // someone outside plays with us

  const uint8_t asker = load_u8(datagram.data() + kProbeSlotOffset);
  const uint16_t index = load_be16(datagram.data() + kProbeIndexOffset);
  const uint32_t round = load_be32(datagram.data() + kProbeRoundOffset);
  if (asker == directory_.slot()) {
    if (round != round_) return true;
    ++own_probes_;
    if (!confirmed_[asker]) learn(asker, index);
  } else if (answered_round_[asker] != round) {
    // The first probe of a round is the lowest: an index that does not exist goes anywhere.
    answered_round_[asker] = round;
    directory_.report_index(asker, {address_, round, index, directory_.slot()});
  }
  return true;
}

void Steering::on_report(const IndexReport& report) {
  if (report.address != address_ || report.round != round_ || report.index >= kMostProbes) return;
  if (report.slot < kFirstSlot || report.slot > kLastSlot) return;
  if (!confirmed_[report.slot]) learn(report.slot, report.index);
}

void Steering::learn(uint8_t slot, uint16_t index) {
  const auto value = static_cast<int16_t>(index);
  for (int16_t& other : index_of_slot_) {
    if (other == value && &other != &index_of_slot_[slot]) {
      other = kUnknown;  // who was there is gone or has moved
      confirmed_[static_cast<size_t>(&other - index_of_slot_.data())] = false;
      changed_ = true;
    }
  }
  changed_ |= index_of_slot_[slot] != value;
  index_of_slot_[slot] = value;
  confirmed_[slot] = true;
  // Without a program all probes go to one socket, by hash, and that one answers to index 0.
  program_seen_ |= index > 0;
}

void Steering::on_stray(Instant now) {
  if (round_ == 0 || now - round_start_ < pause_) return;
  pause_ = std::min(pause_ * 2, kLongestPause);  // shorter again when a round has taught something
  start_round(now);
}

void Steering::tick(Instant now) {
  if (round_ == 0) return;
  const bool patient = now - round_start_ < kPatience;
  if (!program_seen_) {
    // Alone, or nobody has attached a program yet. Attaching one harms nobody now; ask again with
    // it.
    const bool all_came_here = own_probes_ > 1 && confirmed_[directory_.slot()];
    if (!all_came_here && patient) return;
    program_seen_ = true;
    attach();
    start_round(now);
    return;
  }
  // Another member may have attached what it knew, which may be less: once a round, say what we
  // know.
  if (!(changed_ || attach_due_) || (patient && !is_complete())) return;
  attach();
  if (highest_index() + 1 >= probes_ && probes_ < kMostProbes) {
    probes_ = kMostProbes;
    start_round(now);
  }
}

// Whether everyone up to the highest index has answered in this round.
bool Steering::is_complete() const {
  return confirmed_[directory_.slot()] &&
         std::ranges::count(confirmed_, true) == highest_index() + 1;
}

int Steering::highest_index() const {
  int highest = 0;
  for (size_t slot = 0; slot < confirmed_.size(); ++slot) {
    if (confirmed_[slot]) highest = std::max<int>(highest, index_of_slot_[slot]);
  }
  return highest;
}

void Steering::send_probes() {
  const SocketAddress to = SocketAddress::of(address_, wire::kRoceUdpPort);
  for (uint16_t index = 0; index < probes_; ++index) {
    const Probe probe = make_probe(directory_.slot(), index, round_);
    if (::sendto(send_fd_, probe.data(), probe.size(), MSG_DONTWAIT | MSG_NOSIGNAL, to.get(),
                 to.bytes) < 0) {
      return;  // then packets are forwarded for longer
    }
  }
}

void Steering::attach() {
  std::vector<sock_filter> code = program_for(index_of_slot_);
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  if (::setsockopt(receive_fd_, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) ==
      0) {
    ++updates_;
    if (changed_) pause_ = kShortestPause;
  }
  changed_ = false;
  attach_due_ = false;
}

}  // namespace verbena::datapath
