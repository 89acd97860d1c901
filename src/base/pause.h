// pause_cpu(): the CPU's pause instruction, for loops that poll a word in memory. It lets the
// core's other hardware thread run and saves power.
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
