// Who has the process slots of this network namespace. Processes of other users answer no
// questions, so the kernel is asked: sock_diag knows the user of each Unix socket, /proc the
// processes that we may look at.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

namespace verbena::host {

struct HeldSlot {
  uid_t uid = 0;
  pid_t pid = 0;  // 0: not ours to know
};

std::vector<HeldSlot> held_slots();
// "user 1000: 250 (process 4711: 200, process 4712: 50); user 0: 4": who holds most comes first.
std::string describe(std::span<const HeldSlot> slots);

}  // namespace verbena::host
