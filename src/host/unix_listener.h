// A listening Unix socket with an abstract name. Every process of the host can connect to it.
// Connections of other users are closed at a limited rate. If no descriptor is left for a
// connection, it stays in the backlog for a while and does not wake the listener.
#pragma once

#include <cstdint>

#include "os/unique_fd.h"
#include "os/unix_address.h"

namespace verbena::host {

class UnixListener {
 public:
  // Limit per turn, so that connections do not delay other work.
  static constexpr int kAcceptsPerTurn = 16;

  UnixListener() = default;
  // `epoll` reports the listener while a connection waits. If not valid(), errno has the reason.
  UnixListener(const os::UnixAddress& name, int epoll);

  bool valid() const { return socket_.valid(); }
  int fd() const { return socket_.get(); }

  enum class Accepted : uint8_t {
    OwnUser,    // of our user; `socket` is connected to it
    OtherUser,  // of another user; more connections may wait
    None,
  };
  Accepted accept_next(os::UniqueFd& socket);
  // False: the last accepted connection has the last descriptor that this process may open.
  bool has_spare();

 private:
  void report_connections(bool on);
  void pause(long ns);
  bool is_paused();

  os::UniqueFd socket_;
  os::UniqueFd spare_;      // closed when a connection needs a descriptor and none is left
  os::UniqueFd pause_end_;  // a timer
  int epoll_ = -1;
  int other_users_ = 0;  // since the last pause
  bool paused_ = false;  // epoll does not report connections
};

}  // namespace verbena::host
