// Two UD queue pairs of this process on the loopback device.
#pragma once

#include "tests/abi/loopback_support.h"

namespace verbena::test {

using AhPtr = std::unique_ptr<ibv_ah, Destroy<ibv_destroy_ah>>;

inline constexpr uint32_t kQkey = 0x11111111;
inline constexpr uint32_t kHeaderArea = sizeof(ibv_grh);
inline constexpr uint32_t kMulticastQpn = 0xFFFFFF;

ibv_qp_init_attr datagram_attributes(const Side& side);
// RESET to RTS. Returns the first errno.
int datagram_to_rts(ibv_qp* qp, uint32_t qkey = kQkey);

class DatagramTest : public LoopbackTest {
 protected:
  void SetUp() override;
  QpPtr make_ud(Side& side);

  // Attributes of a handle to the device's own GID of that index, by default the first.
  ibv_ah_attr address(int gid_index = 0);
  ibv_send_wr datagram(ibv_sge* sge, ibv_ah* ah, uint32_t qpn);
};

}  // namespace verbena::test
