// What a new rsocket starts with, and the machine-wide files under /etc/rdma/rsocket that change
// it.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace verbena::rsocket {

// How large the queues and buffers of a socket are to be made. Setters take what an application
// says and keep what can work.
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
  // A device's queues hold only so many.
  void limit_slots(int device_max);
};

struct Settings {
  Sizes sizes;
  // How long a call looks before it sleeps. A peer that sleeps takes tens of microseconds to wake
  // and answer: with less than that, two that sleep once keep each other asleep.
  Duration spin = microseconds(100);

  static const Settings& get();  // reads the files at the first call
};

}  // namespace verbena::rsocket
