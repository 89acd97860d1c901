// Static rates, as a multiple of 2.5 Gb/s and in Mb/s.
#include <algorithm>

#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

struct Rate {
  ibv_rate rate;
  int multiple;  // -1: rdma-core does not convert it
  int mbps;      // from 14 Gb/s on the signalling rate, hence the odd numbers
};

constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},       {IBV_RATE_5_GBPS, 2, 5000},
    {IBV_RATE_10_GBPS, 4, 10000},       {IBV_RATE_20_GBPS, 8, 20000},
    {IBV_RATE_30_GBPS, 12, 30000},      {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},      {IBV_RATE_80_GBPS, 32, 80000},
    {IBV_RATE_120_GBPS, 48, 120000},    {IBV_RATE_14_GBPS, -1, 14062},
    {IBV_RATE_56_GBPS, -1, 56250},      {IBV_RATE_112_GBPS, -1, 112500},
    {IBV_RATE_168_GBPS, -1, 168750},    {IBV_RATE_25_GBPS, -1, 25781},
    {IBV_RATE_100_GBPS, -1, 103125},    {IBV_RATE_200_GBPS, -1, 206250},
    {IBV_RATE_300_GBPS, -1, 309375},    {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},      {IBV_RATE_400_GBPS, 160, 425000},
    {IBV_RATE_600_GBPS, 240, 637500},   {IBV_RATE_800_GBPS, 320, 850000},
    {IBV_RATE_1200_GBPS, 480, 1275000},
};

template <typename Value, typename Result>
Result convert(Value Rate::*from, Value value, Result Rate::*to, Result otherwise) {
  const auto* found = std::ranges::find(kRates, value, from);
  return found != std::end(kRates) ? found->*to : otherwise;
}

}  // namespace
}  // namespace verbena::abi

using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT int ibv_rate_to_mult(ibv_rate rate) {
  return convert(&Rate::rate, rate, &Rate::multiple, -1);
}
VERBENA_EXPORT ibv_rate mult_to_ibv_rate(int mult) {
  return mult < 0 ? IBV_RATE_MAX : convert(&Rate::multiple, mult, &Rate::rate, IBV_RATE_MAX);
}
VERBENA_EXPORT int ibv_rate_to_mbps(ibv_rate rate) {
  return convert(&Rate::rate, rate, &Rate::mbps, -1);
}
VERBENA_EXPORT ibv_rate mbps_to_ibv_rate(int mbps) {
  return convert(&Rate::mbps, mbps, &Rate::rate, IBV_RATE_MAX);
}

}  // extern "C"
