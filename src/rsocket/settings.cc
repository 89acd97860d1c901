// Settings: see settings.h.
#include "rsocket/settings.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "rsocket/send_window.h"
#include "rsocket/wire.h"

namespace verbena::rsocket {

namespace {

constexpr uint64_t kMinSlots = 16;
constexpr uint64_t kMaxSlots = 0xfffe;  // keeps 16-bit message counts unambiguous
constexpr uint64_t kMaxBytes = 1u << 30;
constexpr uint64_t kMaxSpinUs = 1'000'000;

std::optional<uint64_t> read_number(const char* name) {
  char path[128];
  std::snprintf(path, sizeof path, "/etc/rdma/rsocket/%s", name);
  FILE* file = std::fopen(path, "re");
  if (!file) return std::nullopt;
  unsigned long long value = 0;
  const bool found = std::fscanf(file, "%llu", &value) == 1;
  std::fclose(file);
  return found ? std::optional<uint64_t>(value) : std::nullopt;
}

Settings read_settings() {
  Settings settings;
  Sizes& sizes = settings.sizes;
  if (const auto us = read_number("polling_time")) {
    settings.spin = microseconds(static_cast<int64_t>(std::min(*us, kMaxSpinUs)));
  }
  if (const auto bytes = read_number("inline_default")) sizes.set_inline_bytes(*bytes);
  if (const auto slots = read_number("sqsize_default")) sizes.set_send_slots(*slots);
  if (const auto slots = read_number("rqsize_default")) sizes.set_receive_slots(*slots);
  if (const auto bytes = read_number("mem_default")) sizes.set_receive_bytes(*bytes);
  if (const auto bytes = read_number("wmem_default")) sizes.set_send_bytes(*bytes);
  if (const auto count = read_number("iomap_size")) sizes.set_iomap_count(*count);
  return settings;
}

uint16_t slots_within(uint64_t slots) {
  return static_cast<uint16_t>(std::clamp(slots, kMinSlots, kMaxSlots));
}

}  // namespace

void Sizes::set_send_bytes(uint64_t bytes) {
  send_bytes = static_cast<uint32_t>(std::clamp<uint64_t>(bytes, SendWindow::kMinRing, kMaxBytes));
}

void Sizes::set_receive_bytes(uint64_t bytes) {
  // Two halves of equal size.
  receive_bytes =
      static_cast<uint32_t>(std::clamp<uint64_t>(bytes, SendWindow::kMinRing, kMaxBytes)) & ~1u;
}

void Sizes::set_send_slots(uint64_t slots) { send_slots = slots_within(slots); }
void Sizes::set_receive_slots(uint64_t slots) { receive_slots = slots_within(slots); }

void Sizes::set_inline_bytes(uint64_t bytes) {
  inline_bytes = static_cast<uint16_t>(std::min<uint64_t>(bytes, kMaxSlots));
}

void Sizes::set_iomap_count(uint64_t count) {
  iomap_count =
      iomap_count_of(iomap_count_code(static_cast<uint32_t>(std::min<uint64_t>(count, 0xffff))));
}

void Sizes::limit_slots(int device_max) {
  const uint64_t max_slots = device_max < 0 ? 0 : static_cast<uint64_t>(device_max);
  send_slots = slots_within(std::min<uint64_t>(send_slots, max_slots));
  receive_slots = slots_within(std::min<uint64_t>(receive_slots, max_slots));
}

const Settings& Settings::get() {
  static const Settings settings = read_settings();
  return settings;
}

}  // namespace verbena::rsocket
