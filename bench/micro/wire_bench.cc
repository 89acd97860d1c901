// Microbenchmarks of the steps that every packet needs: ICRC, parsing, memory key lookup.
#include <benchmark/benchmark.h>

#include <vector>

#include "core/memory_view.h"
#include "wire/icrc.h"
#include "wire/packet.h"

namespace verbena {
namespace {

constexpr uint32_t kPd = 1;
constexpr uint64_t kIova = 0x10000;

wire::IcrcFlow loopback_flow() {
  const uint8_t address[4] = {127, 0, 0, 1};
  wire::IcrcFlow flow;
  flow.source = flow.destination = wire::Gid::from_ipv4(address);
  flow.source_port = 50000;
  return flow;
}

// A WRITE ONLY packet, BTH to padding.
std::vector<std::byte> write_packet(size_t payload) {
  wire::Packet p;
  p.bth.opcode = static_cast<uint8_t>(wire::Opcode::RcWriteOnly);
  p.bth.destination = wire::Qpn::of_slot(1, 7);
  p.reth = {kIova, 0x1234, static_cast<uint32_t>(payload)};
  std::vector<std::byte> bytes(wire::kMaxHeaderBytes);
  bytes.resize(wire::store_headers(p, bytes.data()));
  bytes.resize(bytes.size() + payload, std::byte{0x5a});
  return bytes;
}

void icrc(benchmark::State& state) {
  wire::IcrcPrefixes prefixes(loopback_flow());
  std::vector<std::byte> packet = write_packet(static_cast<size_t>(state.range(0)));
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(
        wire::icrc_over_bth(prefixes.of(packet.size() + sizeof(uint32_t)), packet));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(icrc)->ArgName("payload")->Arg(64)->Arg(1024)->Arg(4096);

void parse(benchmark::State& state) {
  const std::vector<std::byte> packet = write_packet(1024);
  wire::Packet parsed;
  wire::ParseError why{};
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(wire::Packet::parse_into(parsed, packet, &why, {}));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(parse);

// Lookup of the keys of range(0) regions in turn.
void resolve(benchmark::State& state) {
  core::MemoryRegistry registry(42);
  const core::MemoryView view(registry);
  std::vector<std::byte> memory(4096);
  std::vector<uint32_t> keys(static_cast<size_t>(state.range(0)));
  for (uint32_t& key : keys) {
    key = registry
              .add_region(kPd, memory.data(), memory.size(), kIova,
                          core::kLocalWrite | core::kRemoteWrite)
              .value();
  }
  size_t next = 0;
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(view.resolve(keys[next], kPd, wire::Qpn::of_slot(1, 7), kIova + 64,
                                          1024, core::kRemoteWrite));
    next = next + 1 < keys.size() ? next + 1 : 0;
  }
}
BENCHMARK(resolve)->ArgName("regions")->Arg(1)->Arg(1000);

}  // namespace
}  // namespace verbena
