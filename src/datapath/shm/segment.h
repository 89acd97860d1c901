// The memory of a link: two rings, one per direction, in a memfd that cannot shrink. The connecting
// process creates it; the accepting one receives the descriptor and validates it before use.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "datapath/shm/ring.h"
#include "os/unique_fd.h"

namespace verbena::datapath {

inline constexpr size_t kRingBytes = 1u << 20;

// The ends of a link. The connecting process writes the first ring and reads the second.
enum class LinkEnd : uint8_t { Connecting = 0, Accepting = 1 };

class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // Creates a segment. The descriptor is for the other end and not needed afterwards.
  static Result<Segment> create(os::UniqueFd& descriptor);
  // Maps a peer's segment. EINVAL: not a segment that create() makes. The peer could shrink such
  // memory, and an access would raise SIGBUS.
  static Result<Segment> adopt(int descriptor);

  RingMemory written_by(LinkEnd end) const;

 private:
  static Result<Segment> map(int descriptor);

  std::byte* base_ = nullptr;
  pid_t mapper_ = 0;
};

}  // namespace verbena::datapath
