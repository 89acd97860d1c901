// Processes of this user connect to a lifeline, send anything or nothing, and disconnect: only
// slots that a connection named are reported as ended, at least once and at most once per
// connection. (A connection that names the slot of another open connection is closed.)
//
// The input is a list of steps, three bytes each: the action, the connection and the slot.
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
constexpr size_t kConnections = 8;
constexpr size_t kSteps = 100;

struct Connection {
  os::UniqueFd socket;
  int slot = -1;  // of its first message
};

void connect(Connection& connection) {
  connection = {os::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  const os::UnixAddress name = os::UnixAddress::abstract("verbena/life/1/%u", kSlot);
  VERBENA_CHECK(::connect(connection.socket.get(), name.get(), name.bytes) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  host::Lifelines lines(kSlot);
  std::array<Connection, kConnections> connections;
  std::array<int, 256> named{}, reported{};
  const auto disconnect = [&](Connection& connection) {
    if (connection.slot > 0) ++named[static_cast<size_t>(connection.slot)];
    connection = {};
  };
  const auto take = [&] {
    for (const uint8_t slot : lines.take_departed()) {
      VERBENA_CHECK(++reported[slot] <= named[slot]);
    }
  };
  for (size_t at = 0; at + 2 < size && at < 3 * kSteps; at += 3) {
    Connection& connection = connections[data[at + 1] % kConnections];
    switch (data[at] % 4) {
      case 0:
        disconnect(connection);
        connect(connection);
        break;
      case 1: {  // only the first byte of the first message matters
        // 0 is no slot: the connection may be closed.
        if (!connection.socket.valid() || data[at + 2] == 0) break;
        const std::array<uint8_t, 4> message{data[at + 2], 1, 2, 3};
        const size_t bytes = 1 + data[at] / 4 % message.size();
        if (::send(connection.socket.get(), message.data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
          break;
        if (connection.slot <= 0) connection.slot = data[at + 2];
        break;
      }
      case 2:
        disconnect(connection);
        break;
      default:
        take();
    }
  }
  for (Connection& connection : connections) disconnect(connection);
  // Connections are accepted, their messages read and their disconnects detected one by one.
  for (size_t turn = 0; turn <= kSteps + 1; ++turn) take();
  for (size_t slot = 1; slot < named.size(); ++slot) {
    VERBENA_CHECK(named[slot] == 0 || reported[slot] > 0);
  }
  return 0;
}
