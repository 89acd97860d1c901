// SeqCell: a value of a few words with one writer and any number of readers, which may be in
// another process. A reader copies the value and detects whether the copy is consistent (seqlock).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace verbena {

template <size_t kWords>
class SeqCell {
 public:
  template <typename T>
  void store(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof words_);
    std::array<uint64_t, kWords> copy{};
    std::memcpy(copy.data(), &value, sizeof value);
    const uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t i = 0; i < kWords; ++i) words_[i].store(copy[i], std::memory_order_relaxed);
    version_.store(version + 2, std::memory_order_release);
  }
  // False: the value changed meanwhile.
  template <typename T>
  bool load(T& value) const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof words_);
    std::array<uint64_t, kWords> copy;
    const uint32_t version = version_.load(std::memory_order_acquire);
    for (size_t i = 0; i < kWords; ++i) copy[i] = words_[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    std::memcpy(static_cast<void*>(&value), copy.data(), sizeof value);
    return version % 2 == 0 && version_.load(std::memory_order_relaxed) == version;
  }

 private:
  std::atomic<uint32_t> version_{0};  // odd during a store
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

}  // namespace verbena
