// Feeds any bytes to Packet::parse: it reads nothing beyond them, and a packet that it accepts can
// be serialized again.
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "wire/packet.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena::wire;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  ParseError why{};
  const auto p = Packet::parse({bytes, size}, &why);
  if (!p) return 0;
  VERBENA_CHECK(p->op.valid());
  VERBENA_CHECK(p->op.header_bytes + p->payload.size() + p->bth.pad == size);
  if (p->op.verb == Verb::Cnp) return 0;
  std::byte header[64];
  VERBENA_CHECK(store_headers(*p, header) == p->op.header_bytes);
  // All bits are kept except reserved ones.
  ParseError second_error{};
  std::vector<std::byte> again(bytes, bytes + size);
  std::memcpy(again.data(), header, p->op.header_bytes);
  const auto q = Packet::parse(again, &second_error);
  VERBENA_CHECK(q.has_value());
  std::byte second[64];
  VERBENA_CHECK(store_headers(*q, second) == p->op.header_bytes);
  VERBENA_CHECK(std::memcmp(header, second, p->op.header_bytes) == 0);
  return 0;
}
