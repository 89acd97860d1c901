// Buffers: the memory of a call, as one or many areas, with the position up to which it has been
// used.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>

#include "base/result.h"

namespace verbena::rsocket {

class Buffers {
 public:
  // The array must outlive the object.
  static Result<Buffers> from(const iovec* areas, size_t count) {
    if (count > IOV_MAX) return Error{EMSGSIZE};
    if (count > 0 && !areas) return Error{EFAULT};
    size_t total = 0;
    for (size_t i = 0; i < count; ++i) {
      if (areas[i].iov_len > static_cast<size_t>(SSIZE_MAX) - total) return Error{EINVAL};
      total += areas[i].iov_len;
    }
    return Buffers(areas, total);
  }

  size_t left() const { return left_; }

  // Returns the next `size` bytes if they are contiguous, otherwise null. Does not advance.
  const void* contiguous(size_t size) {
    skip_empty();
    return area_->iov_len - used_ >= size ? at() : nullptr;
  }
  void advance(size_t size) {
    each(size, [](std::byte*, size_t) {});
  }
  void copy_out(std::byte* to, size_t size) {
    each(size, [&](const std::byte* from, size_t part) {
      std::memcpy(to, from, part);
      to += part;
    });
  }
  void copy_in(const std::byte* from, size_t size) {
    each(size, [&](std::byte* to, size_t part) {
      std::memcpy(to, from, part);
      from += part;
    });
  }

 private:
  Buffers(const iovec* areas, size_t total) : area_(areas), left_(total) {}

  std::byte* at() const { return static_cast<std::byte*>(area_->iov_base) + used_; }

  void skip_empty() {
    while (left_ > 0 && used_ == area_->iov_len) {
      ++area_;
      used_ = 0;
    }
  }

  // `size` is at most left().
  template <typename Use>
  void each(size_t size, Use use) {
    while (size > 0) {
      skip_empty();
      const size_t part = std::min(size, area_->iov_len - used_);
      use(at(), part);
      used_ += part;
      left_ -= part;
      size -= part;
    }
  }

  const iovec* area_;
  size_t used_ = 0;  // bytes of the current area
  size_t left_;
};

}  // namespace verbena::rsocket
