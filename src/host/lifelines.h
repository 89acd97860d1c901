// Lifelines: a process learns from them that a connected peer process of this host has ended. A
// process that exits normally sends DREQs. A killed process cannot; for a hardware NIC the kernel
// does it. Each pair of connected processes therefore shares a connected Unix socket; the kernel
// closes a process's end in every case. Not thread-safe: the owner's lock guards it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/result.h"
#include "host/unix_listener.h"
#include "os/unique_fd.h"

namespace verbena::host {

class Lifelines {
 public:
  // `slot` is this process's own.
  explicit Lifelines(uint8_t slot);

  // Watches the process of that slot from now on. Returns false if no process has the slot.
  bool watch(uint8_t slot);
  // Readable while take_departed() has work to do; -1 if the process has no descriptors left.
  int fd() const { return epoll_.get(); }
  // Returns the slots of the processes that have ended since the last call. If it throws bad_alloc,
  // it has changed nothing.
  std::vector<uint8_t> take_departed();

 private:
  enum class OpenedBy : uint8_t { Us, Peer };
  struct Line {
    os::UniqueFd socket;
    OpenedBy opened_by = OpenedBy::Peer;
    uint8_t slot = 0;  // 0: the connecting process has not sent it yet
  };
  using Lines = std::map<int, Line>;  // by descriptor
  // Limit for accepted lines whose slot is unknown. Most processes send it before they are
  // accepted.
  static constexpr size_t kMaxUnidentified = 64;

  // Requires reserve_line(). Returns lines_.end() if epoll refuses the socket.
  Lines::iterator add(os::UniqueFd socket, OpenedBy opened_by, uint8_t slot);
  void reserve_line();
  void accept_connections(std::vector<uint8_t>& departed);
  void limit_unidentified();
  void read(Lines::iterator line, std::vector<uint8_t>& departed);
  bool is_duplicate(const Line& line, uint8_t slot, std::vector<uint8_t>& departed);
  void end(Lines::iterator line, std::vector<uint8_t>& departed);

  const uint8_t slot_;
  os::UniqueFd epoll_;
  UnixListener listener_;
  Lines lines_;
  Lines spare_;  // preallocated node for the next line
};

}  // namespace verbena::host
