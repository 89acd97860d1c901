// The packets of a check. Their layout makes the steering program treat them as a peer's packets.
#include "host/index_check.h"

#include <algorithm>

#include "base/bytes.h"
#include "host/steering_program.h"
#include "wire/identifiers.h"

namespace verbena::host {
namespace {

// A BTH with a manufacturer-specific opcode; then, in place of the DETH and MAD header:
//   12 'V' 'B' | 14 about | 15 slot | 16..19 number of the check
constexpr uint8_t kCheckOpcode = 0xFE;
constexpr size_t kQpnOffset = 5;
constexpr size_t kMarkOffset = 12;
constexpr size_t kAboutOffset = 14;
constexpr size_t kSenderOffset = 15;
constexpr size_t kNumberOffset = 16;

}  // namespace

IndexCheck::Packet IndexCheck::make(About about, uint8_t slot, uint32_t number, uint32_t service) {
  Packet p{};
  store_u8(p.data(), kCheckOpcode);
  const wire::Qpn to = about == About::Slot ? wire::Qpn::of_slot(slot, 0) : wire::kManagementQpn;
  store_be24(p.data() + kQpnOffset, to.value());
  store_u8(p.data() + kMarkOffset, 'V');
  store_u8(p.data() + kMarkOffset + 1, 'B');
  store_u8(p.data() + kAboutOffset, static_cast<uint8_t>(about));
  store_u8(p.data() + kSenderOffset, slot);
  store_be32(p.data() + kNumberOffset, number);
  if (about == About::Service) {
    store_be16(p.data() + kAttributeOffset, kRequestAttribute);
    store_be32(p.data() + kServiceLowOffset, service);
  }
  return p;
}

void IndexCheck::send(int fd, const SocketAddress& to, uint8_t slot,
                      std::optional<uint32_t> service) {
  ++number_;
  missing_ = 0;
  const auto ask = [&](About about) {
    const Packet p = make(about, slot, number_, service.value_or(0));
    // A packet that cannot be sent cannot return and proves nothing.
    if (send_one(fd, to, p)) missing_ |= static_cast<uint8_t>(about);
  };
  ask(About::Slot);
  if (service) ask(About::Service);
}

bool IndexCheck::take(std::span<const std::byte> datagram, uint8_t slot) {
  if (datagram.size() != kBytes || load_u8(datagram.data()) != kCheckOpcode ||
      load_u8(datagram.data() + kMarkOffset) != 'V' ||
      load_u8(datagram.data() + kMarkOffset + 1) != 'B') {
    return false;
  }
  if (load_u8(datagram.data() + kSenderOffset) == slot &&
      load_be32(datagram.data() + kNumberOffset) == number_) {
    missing_ &= static_cast<uint8_t>(~load_u8(datagram.data() + kAboutOffset));
  }
  return true;
}

}  // namespace verbena::host
