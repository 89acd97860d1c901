// The memory of a link: two rings, one per direction, in a memfd that cannot shrink. Whoever calls
// makes it; the answerer gets the descriptor and looks at it closely before touching the memory.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "datapath/shm/ring.h"
#include "os/unique_fd.h"

namespace verbena::datapath {

inline constexpr size_t kRingBytes = 1u << 20;

// Which end of the link one is: the caller writes the first ring and reads the second.
enum class LinkEnd : uint8_t { Connecting = 0, Accepting = 1 };

class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // A new one. Its descriptor goes to the other end and is not needed afterwards.
  static Result<Segment> create(os::UniqueFd& descriptor);
  // One that somebody else made. EINVAL if it is not what create() makes: memory that could go away
  // under us would be a SIGBUS.
  static Result<Segment> adopt(int descriptor);

  RingMemory written_by(LinkEnd end) const;

 private:
  static Result<Segment> map(int descriptor);

  std::byte* base_ = nullptr;
  pid_t mapper_ = 0;
};

}  // namespace verbena::datapath
