// The defaults of a new rsocket, and the machine-wide files under /etc/rdma/rsocket that change
// them.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace verbena::rsocket {

// Sizes of a socket's queues and buffers. The setters adjust an application's value to one that
// works.
struct Sizes {
  uint32_t send_bytes = 128 * 1024;
  uint32_t receive_bytes = 128 * 1024;
  uint16_t send_slots = 384;
  uint16_t receive_slots = 384;
  uint16_t inline_bytes = 64;
  uint32_t iomap_count = 0;

  void set_send_bytes(uint64_t bytes);
  void set_receive_bytes(uint64_t bytes);
  void set_send_slots(uint64_t slots);
  void set_receive_slots(uint64_t slots);
  void set_inline_bytes(uint64_t bytes);
  void set_iomap_count(uint64_t count);
  // Limits the queues to the device's maximum.
  void limit_slots(int device_max);
};

struct Settings {
  Sizes sizes;
  // Busy-poll time of a call before it sleeps. A sleeping peer needs tens of microseconds to wake
  // and reply: with a shorter time, two peers that sleep once would keep each other asleep.
  Duration spin = microseconds(100);

  static const Settings& get();  // reads the files at the first call
};

}  // namespace verbena::rsocket
