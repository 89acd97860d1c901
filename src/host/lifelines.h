// Lifelines: how a process learns that another one of this host, with which it has connections, is
// gone. A process that ends in order says so on the network; one that is killed cannot, and
// hardware would have done it for it. Between two such processes there is a connected Unix socket:
// the kernel closes its end however the process ends. Not thread-safe; its owner's lock guards it.
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
  // Of the process that has this slot.
  explicit Lifelines(uint8_t slot);

  // From now on the end of the process of that slot is told. False: it has none (any more).
  bool watch(uint8_t slot);
  // Readable while take_departed() has something to do; -1 where the system gives no descriptors.
  int fd() const { return epoll_.get(); }
  // Slots of processes that have ended since. Throws bad_alloc, and has done nothing then.
  std::vector<uint8_t> take_departed();

 private:
  enum class CalledBy : uint8_t { Us, Peer };
  struct Line {
    os::UniqueFd socket;
    CalledBy called_by = CalledBy::Peer;
    uint8_t slot = 0;  // 0: whoever called has not said it yet
  };
  using Lines = std::map<int, Line>;  // by descriptor
  // Callers that have not said their slot. Most have when they are taken.
  static constexpr size_t kMostSilent = 64;

  // After reserve_line(). lines_.end(): the kernel cannot watch it.
  Lines::iterator add(os::UniqueFd socket, CalledBy called_by, uint8_t slot);
  void reserve_line();
  void accept_callers(std::vector<uint8_t>& departed);
  void make_room_for_silent();
  void read(Lines::iterator line, std::vector<uint8_t>& departed);
  bool is_double(const Line& line, uint8_t slot, std::vector<uint8_t>& departed);
  void end(Lines::iterator line, std::vector<uint8_t>& departed);

  const uint8_t slot_;
  os::UniqueFd epoll_;
  UnixListener listener_;
  Lines lines_;
  Lines spare_;  // the node of the next line
};

}  // namespace verbena::host
