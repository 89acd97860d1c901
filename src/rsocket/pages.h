// Pages: zeroed memory in whole pages, for registration. Whole pages, because a library may exclude
// registered pages from the child of a fork.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "base/result.h"

namespace verbena::rsocket {

class Pages {
 public:
  static Result<Pages> allocate(size_t size) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    size = (size + page - 1) / page * page;
    void* memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return Error{errno};
    return Pages(static_cast<std::byte*>(memory), size);
  }
  Pages() = default;
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Pages() {
    if (data_) ::munmap(data_, size_);
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Pages(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace verbena::rsocket
