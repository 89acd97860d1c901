// The registry of wires and local media.
#include "datapath/registry.h"

#include "datapath/shm/shm_datapath.h"
#include "datapath/udp/udp_datapath.h"

namespace verbena::datapath {
namespace {

constexpr WireKind kWires[] = {{"UDP", &UdpDatapath::open_wire}};
constexpr LocalMediumKind kMedia[] = {{"shared memory", &ShmDatapath::open_medium}};

}  // namespace

std::span<const WireKind> wires() { return kWires; }
std::span<const LocalMediumKind> local_media() { return kMedia; }

}  // namespace verbena::datapath
