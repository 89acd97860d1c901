// The program steers by the slot in the destination QPN. On queue pair 1, which all processes
// share, it steers by the connection message: replies carry their receiver's slot in the
// communication ID, requests carry a service ID (as in cm/route.h).
#include "host/steering_program.h"

#include <algorithm>

namespace verbena::host {
namespace {

// Offset 0 is the UDP payload's first byte.
constexpr uint32_t kSlotOffset = 5;  // the destination QPN's top byte
constexpr uint32_t kQpnLowOffset = 6;
constexpr uint32_t kSidrRequestIdOffset = 44;  // in a SIDR_REP
constexpr uint32_t kRemoteIdOffset = 48;       // in all other replies
constexpr uint32_t kServiceHighOffset = 52;    // in REQ and SIDR_REQ

constexpr uint32_t kSidrReq = 0x17;
constexpr uint32_t kSidrRep = 0x18;

constexpr uint32_t kNoSocket = 0xFFFFFFFF;  // makes the kernel choose by hash

constexpr sock_filter statement(int code, uint32_t k) {
  return {static_cast<uint16_t>(code), 0, 0, k};
}
constexpr sock_filter load(int size, uint32_t offset) {
  return statement(BPF_LD | size | BPF_ABS, offset);
}
constexpr sock_filter give(uint32_t index) { return statement(BPF_RET | BPF_K, index); }
constexpr sock_filter skip(uint32_t instructions) {
  return statement(BPF_JMP | BPF_JA, instructions);
}
constexpr sock_filter skip_if(uint32_t value, uint8_t if_equal, uint8_t otherwise) {
  return {BPF_JMP | BPF_JEQ | BPF_K, if_equal, otherwise, value};
}

using Code = std::vector<sock_filter>;

void give_if(Code& to, uint32_t value, int16_t index) {
  to.push_back(skip_if(value, 0, 1));
  to.push_back(give(static_cast<uint32_t>(index)));
}

}  // namespace

std::vector<sock_filter> steering_program(const SteeringTable& table) {
  const uint32_t fallback = table.fallback < 0 ? kNoSocket : static_cast<uint32_t>(table.fallback);

  Code by_service = {load(BPF_W, kServiceHighOffset), skip_if(0, 1, 0), give(fallback),
                     load(BPF_W, kServiceLowOffset)};
  const size_t services = std::min(table.services.size(), kMaxSteeredServices);
  for (size_t i = 0; i < services; ++i) {
    give_if(by_service, table.services[i].first, table.services[i].second);
  }
  by_service.push_back(give(fallback));

  // BPF has only forward jumps, and conditional ones are short. That dictates the order of the
  // parts and the unconditional jumps over whole parts.
  const auto to_slots = static_cast<uint32_t>(by_service.size());
  Code code = {
      load(BPF_B, 0),
      skip_if(kProbeOpcode, 0, 2),
      load(BPF_H, kProbeIndexOffset),
      statement(BPF_RET | BPF_A, 0),
      load(BPF_B, kSlotOffset),
      skip_if(0, 1, 0),
      skip(11 + to_slots),
      load(BPF_H, kQpnLowOffset),
      skip_if(1, 1, 0),
      give(fallback),  // queue pair 0
      load(BPF_H, kAttributeOffset),
      skip_if(kRequestAttribute, 6, 0),
      skip_if(kSidrReq, 5, 0),
      skip_if(kSidrRep, 0, 2),
      load(BPF_B, kSidrRequestIdOffset),
      skip(1),
      load(BPF_B, kRemoteIdOffset),
      skip(to_slots),  // slot 0 (the sender knows no ID of ours) has no entry
  };
  code.insert(code.end(), by_service.begin(), by_service.end());
  for (uint32_t slot = 0; slot < table.index_of_slot.size(); ++slot) {
    if (table.index_of_slot[slot] >= 0) give_if(code, slot, table.index_of_slot[slot]);
  }
  code.push_back(give(fallback));
  return code;
}

}  // namespace verbena::host
