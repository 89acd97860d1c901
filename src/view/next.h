// NEXT(open): the function that the program would call without this library: the C library's, or
// that of another preloaded library.
#pragma once

#include <dlfcn.h>

#include <atomic>

#define NEXT(name)                                                                          \
  (reinterpret_cast<decltype(&::name)>([]() noexcept {                                      \
    static std::atomic<void*> found{nullptr}; /* no guard: fork() may happen at any time */ \
    void* function = found.load(std::memory_order_relaxed);                                 \
    if (function == nullptr) {                                                              \
      function = dlsym(RTLD_NEXT, #name);                                                   \
      found.store(function, std::memory_order_relaxed);                                     \
    }                                                                                       \
    return function;                                                                        \
  }()))

#define VERBENA_SHOWN extern "C" __attribute__((visibility("default")))
// Defines another name for a function of the same file. Where long and off_t have 64 bits, the
// names for large files are such aliases.
#define VERBENA_ALSO(name, other) __asm__(".globl " #other "\n.set " #other ", " #name)
