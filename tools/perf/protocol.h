// verbena perf: what the two sides say to each other. Everything is in network byte order.
#pragma once

#include <endian.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace verbena::perf {

inline constexpr uint32_t kMagic = 0x56506572;  // "VPer"
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kMaxMessage = 4u << 20;
inline constexpr uint16_t kDefaultPort = 7475;

enum class Answer : uint32_t { Welcome = 0, OtherVersion = 1, Busy = 2 };

// Private data of the connection messages: of the request, of its acceptance and of its refusal.
struct Hello {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t target = 0;  // memory that the other side may WRITE and READ
  uint32_t rkey = 0;
  Answer answer = Answer::Welcome;

  Hello swapped() const {
    return {htobe32(magic), htobe32(version), htobe64(target), htobe32(rkey),
            static_cast<Answer>(htobe32(static_cast<uint32_t>(answer)))};
  }

  // nullopt: whoever wrote this is not verbena perf.
  static std::optional<Hello> load(const void* data, size_t size) {
    Hello raw;
    if (data == nullptr || size < sizeof raw) return std::nullopt;
    std::memcpy(&raw, data, sizeof raw);
    const Hello hello = raw.swapped();
    if (hello.magic != kMagic) return std::nullopt;
    return hello;
  }
};
static_assert(sizeof(Hello) == 24);

// What the server is to do next. It answers with the same command when it is ready.
enum class Part : uint32_t {
  TakeSends = 1,  // receive `count` messages
  AnswerSends,    // answer each of `count` messages by one of the same size
  AnswerWrites,   // the same by WRITEs, seen by their last byte
};

struct Command {
  Part part = Part::TakeSends;
  uint32_t size = 0;
  uint64_t count = 0;

  Command swapped() const {
    return {static_cast<Part>(htobe32(static_cast<uint32_t>(part))), htobe32(size), htobe64(count)};
  }
};
static_assert(sizeof(Command) == 16);

// The last byte of WRITE number `i` of a ping-pong: never 0, never that of the one before.
constexpr uint8_t mark(uint64_t i) { return static_cast<uint8_t>(1 + i % 255); }

}  // namespace verbena::perf
