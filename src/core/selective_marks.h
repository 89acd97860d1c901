// SelectiveMarks: how two Verbenas find out that both take packets in any order, and say what else
// is not as between others. They do so in seven bits of the BTH that are reserved: everybody else
// sends 0 there and ignores what comes.
//
// Who answers a loss marks that answer, and the first acknowledgement of a connection: "I can keep
// what follows a gap". Whoever knows that from its peer marks its requests: "I can read a list of
// what you keep". Only then is anything kept or listed, and only then does anything leave before
// its turn, or take an acknowledgement along, which its mark says. Each side of a connection has
// marks of its own, told apart by the QPNs, so that a NIC which sends back what it finds in these
// bits, anywhere in its packets, says nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/identifiers.h"

namespace verbena::core {

struct SelectiveMarks {
  uint8_t can = 0;    // in a response
  uint8_t wants = 0;  // in a request
  uint8_t early = 0;  // in a request, and something before it comes behind it
  // In a request, and before its payload are four bytes: the PSN up to which all of the peer's
  // requests arrived, as an acknowledgement would say.
  uint8_t carries = 0;
};

inline constexpr size_t kCarriedBytes = 4;

// None (0) when the QPNs are equal: those two stay with what everybody can.
constexpr SelectiveMarks marks_from(wire::Qpn sender, wire::Qpn receiver) {
  if (sender.value() < receiver.value()) {
    return {.can = 0x1E, .wants = 0x2A, .early = 0x33, .carries = 0x4C};
  }
  if (sender.value() > receiver.value()) {
    return {.can = 0x2D, .wants = 0x19, .early = 0x07, .carries = 0x34};
  }
  return {};
}

}  // namespace verbena::core
