// Processes of this user that connect to a lifeline, send anything or nothing, and disconnect: only
// slots that a caller named are reported as departed, at most once per caller and at least once.
// (A caller that names the slot of another live caller is disconnected.)
//
// The input is a list of steps, two bytes each: the action and the caller.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>

#include "base/check.h"
#include "host/lifelines.h"
#include "os/unix_address.h"

namespace {

using namespace verbena;

constexpr uint8_t kSlot = 9;
constexpr size_t kCallers = 8;
constexpr size_t kSteps = 100;

struct Caller {
  os::UniqueFd socket;
  int slot = -1;  // of its first message
};

void call(Caller& caller) {
  caller = {os::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  const os::UnixAddress name = os::UnixAddress::abstract("verbena/life/1/%u", kSlot);
  VERBENA_CHECK(::connect(caller.socket.get(), name.get(), name.bytes) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  host::Lifelines lines(kSlot);
  std::array<Caller, kCallers> callers;
  std::array<int, 256> named{}, told{};
  const auto hang_up = [&](Caller& caller) {
    if (caller.slot > 0) ++named[static_cast<size_t>(caller.slot)];
    caller = {};
  };
  const auto take = [&] {
    for (const uint8_t slot : lines.take_departed()) {
      VERBENA_CHECK(++told[slot] <= named[slot]);
    }
  };
  for (size_t at = 0; at + 2 < size && at < 3 * kSteps; at += 3) {
    Caller& caller = callers[data[at + 1] % kCallers];
    switch (data[at] % 4) {
      case 0:
        hang_up(caller);
        call(caller);
        break;
      case 1: {  // only the first byte of the first message matters
        // 0 is no slot: the caller may be disconnected.
        if (!caller.socket.valid() || data[at + 2] == 0) break;
        const std::array<uint8_t, 4> message{data[at + 2], 1, 2, 3};
        const size_t bytes = 1 + data[at] / 4 % message.size();
        if (::send(caller.socket.get(), message.data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
          break;
        if (caller.slot <= 0) caller.slot = data[at + 2];
        break;
      }
      case 2:
        hang_up(caller);
        break;
      default:
        take();
    }
  }
  for (Caller& caller : callers) hang_up(caller);
  // Callers are accepted, their messages read and their disconnects detected one after the other.
  for (size_t turn = 0; turn <= kSteps + 1; ++turn) take();
  for (size_t slot = 1; slot < named.size(); ++slot) {
    VERBENA_CHECK(named[slot] == 0 || told[slot] > 0);
  }
  return 0;
}
