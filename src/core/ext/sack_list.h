// SackList: the payload of a sequence NAK between two Verbenas. Bit i is set if the responder has
// buffered the request with the PSN i + 1 behind the missing one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/reorder_buffer.h"
#include "wire/psn.h"

namespace verbena::core {

class SackList {
 public:
  // The reach of a list in a packet of this MTU.
  static int32_t reach(uint32_t mtu) {
    return std::min(ReorderBuffer::kReach, static_cast<int32_t>(8 * mtu));
  }
  // Lists the packets in `buffer`, which are behind `missing` by less than the reach.
  SackList(const ReorderBuffer& buffer, wire::Psn missing) {
    for (size_t i = 0; i < buffer.size(); ++i) {
      const auto bit = static_cast<uint32_t>(buffer.psn(i).distance_from(missing) - 1);
      bits_[bit / 8] |= std::byte(1u << bit % 8);
      bytes_ = (bit / 32 + 1) * 4;
    }
  }
  std::span<const std::byte> bytes() const { return {bits_.data(), bytes_}; }

  // Whether the list in the NAK of `missing` contains `psn`.
  static bool contains(std::span<const std::byte> list, wire::Psn missing, wire::Psn psn) {
    const int32_t bit = psn.distance_from(missing) - 1;
    if (bit < 0 || static_cast<size_t>(bit) / 8 >= list.size()) return false;
    return (std::to_integer<uint32_t>(list[static_cast<size_t>(bit) / 8]) >> bit % 8 & 1) != 0;
  }

 private:
  std::array<std::byte, ReorderBuffer::kReach / 8> bits_{};
  uint32_t bytes_ = 0;
};

}  // namespace verbena::core
