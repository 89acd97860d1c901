// SelectiveMarks: how two Verbenas find out that both take packets in any order. They say so in
// seven bits of the BTH that are reserved: everybody else sends 0 there and ignores what comes.
//
// Who answers a loss marks that answer, and the first acknowledgement of a connection: "I can keep
// what follows a gap". Whoever knows that from its peer marks its requests: "I can read a list of
// what you keep". Only then is anything kept or listed, and only then does anything leave before
// its turn, which its mark says. Each side of a connection has marks of its own, told apart by the
// QPNs, so that a NIC which sends back what it finds in these bits, anywhere in its packets, says
// nothing.
#pragma once

#include <cstdint>

#include "wire/identifiers.h"

namespace verbena::core {

struct SelectiveMarks {
  uint8_t can = 0;    // in a response
  uint8_t wants = 0;  // in a request
  uint8_t early = 0;  // in a request, and something before it comes behind it
};

// None (0) when the QPNs are equal: those two stay with what everybody can.
constexpr SelectiveMarks marks_from(wire::Qpn sender, wire::Qpn receiver) {
  if (sender.value() < receiver.value()) return {.can = 0x2E, .wants = 0x52, .early = 0x35};
  if (sender.value() > receiver.value()) return {.can = 0x1D, .wants = 0x64, .early = 0x4B};
  return {};
}

}  // namespace verbena::core
