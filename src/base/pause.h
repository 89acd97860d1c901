// What a thread does between two looks at the same word: it lets its core's other thread run, and
// saves power.
#pragma once

namespace verbena {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace verbena
