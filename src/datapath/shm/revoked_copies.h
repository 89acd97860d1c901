// Revoked direct copies that the kernel may still be executing. The list has capacity for one per
// process of the host, so deregistering memory allocates nothing and works when memory is
// exhausted.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "datapath/shm/initiator_thread.h"

namespace verbena::datapath {

struct RevokedCopy {
  uint32_t link = 0;
  uint32_t number = 0;
  InitiatorThread thread;
};

class RevokedCopies {
 public:
  static constexpr size_t kMaxCopies = 256;  // the number of slots

  void add(const RevokedCopy& copy) { list_.at(count_++) = copy; }
  template <typename Predicate>
  void remove_if(Predicate predicate) {
    count_ = static_cast<size_t>(std::remove_if(begin(), end(), predicate) - begin());
  }
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  RevokedCopy& front() { return list_.front(); }
  RevokedCopy* begin() { return list_.data(); }
  RevokedCopy* end() { return list_.data() + count_; }

 private:
  std::array<RevokedCopy, kMaxCopies> list_;
  size_t count_ = 0;
};

}  // namespace verbena::datapath
