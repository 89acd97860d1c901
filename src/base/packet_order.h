// Tells the thread sanitizer that what a lane did before it sent a packet precedes what the
// receiver does. It cannot see this: lanes of one process exchange packets through the kernel, or
// through memory that each of them maps at an address of its own. Nothing in other builds.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace verbena {

#if defined(__SANITIZE_THREAD__)
inline uint64_t packet_order_marks[256];  // by slot

inline void order_sent_packet(uint8_t slot) { __tsan_release(&packet_order_marks[slot]); }
inline void order_received_packets(uint8_t slot) { __tsan_acquire(&packet_order_marks[slot]); }
#else
inline void order_sent_packet(uint8_t /*slot*/) {}
inline void order_received_packets(uint8_t /*slot*/) {}
#endif

}  // namespace verbena
