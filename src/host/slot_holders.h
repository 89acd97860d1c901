// Lists the owners of the slots of this network namespace. Processes of other users do not reply to
// queries, so this uses the kernel: sock_diag reports the user of each Unix socket, /proc the
// visible processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace verbena::host {

struct HeldSlot {
  uid_t uid = 0;
  pid_t pid = 0;  // 0: not visible to this user
  uint8_t slot = 0;
};

std::vector<HeldSlot> held_slots();
// "user 1000: 250 (process 4711: 200, process 4712: 50); user 0: 4", the largest number first.
std::string describe(std::span<const HeldSlot> slots);

}  // namespace verbena::host
