// Memory whose pages the kernel sends from, instead of copying what lies in them.
//
// It does not say when it is done with a page. So each peer process has memory of its own, several
// times what may be under way to it for the first time (TxPacket::in_window): when a place comes
// round again, what was sent from it has been acknowledged, or taken by who asked for it. Should a
// packet of a queue pair that was given up still wait somewhere, its ICRC no longer fits; and
// whatever else is read there was meant for that same process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::datapath {

class ZeroCopyRing {
 public:
  static constexpr size_t kBytes = 4u << 20;  // huge pages, where there are any

  ZeroCopyRing();
  ~ZeroCopyRing();
  ZeroCopyRing(const ZeroCopyRing&) = delete;
  ZeroCopyRing& operator=(const ZeroCopyRing&) = delete;

  bool valid() const { return base_ != nullptr; }
  // The start of a page with at least `most` bytes behind it.
  std::byte* place(size_t most);
  // Where what was used last ends.
  const std::byte* end() const { return base_ + next_; }
  // So much of it is used; the next place is behind that.
  void used(size_t bytes) { next_ += bytes; }

 private:
  std::byte* base_ = nullptr;
  size_t next_ = 0;
};

}  // namespace verbena::datapath
