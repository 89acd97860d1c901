// A listening Unix socket with an abstract name. Everybody on the host can call it. Callers of
// other users are hung up on, so many per millisecond. Where no descriptor is left for a caller, it
// stays in the queue for a while and wakes nobody.
#pragma once

#include <cstdint>

#include "os/unique_fd.h"
#include "os/unix_address.h"

namespace verbena::host {

class UnixListener {
 public:
  // A bound on what is done for callers before others get their turn.
  static constexpr int kCallersPerTurn = 16;

  UnixListener() = default;
  // Shown by `epoll` while somebody calls. Not valid(): errno says why.
  UnixListener(const os::UnixAddress& name, int epoll);

  bool valid() const { return socket_.valid(); }
  int fd() const { return socket_.get(); }

  enum class Caller : uint8_t {
    Own,       // of our user: `socket` is connected to it
    Stranger,  // of another one; there may be more callers
    Nobody,
  };
  Caller next(os::UniqueFd& socket);
  // False: the caller has the last descriptor that this process may open.
  bool has_spare();

 private:
  void show_callers(bool on);
  void pause(long ns);
  bool is_paused();

  os::UniqueFd socket_;
  os::UniqueFd spare_;      // to be let go of when a caller needs a descriptor and there is none
  os::UniqueFd pause_end_;  // a timer
  int epoll_ = -1;
  int strangers_ = 0;    // since the last pause
  bool paused_ = false;  // the epoll does not show callers
};

}  // namespace verbena::host
