// Composes the datapath of a lane.
#include "runtime/lane_datapath.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "datapath/faulty_datapath.h"
#include "datapath/pcap_datapath.h"
#include "datapath/registry.h"
#include "host/slot_holders.h"
#include "runtime/config.h"
#include "runtime/log.h"

namespace verbena::runtime {
namespace {

uint64_t wall_clock_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

void log_slot_holders() {
  const std::string holders = host::describe(host::held_slots());
  log(LogLevel::Error,
      "process slots are held by %s. End some of these programs, or use a network namespace "
      "of your own (unshare -n)",
      holders.empty() ? "processes that the kernel does not name" : holders.c_str());
}

}  // namespace

Status LaneDatapath::open(const DeviceInfo& device, host::SlotDirectory::CountersText reply) {
  // Each device has a slot of its own: two devices may have the same address and must not use the
  // same QPNs.
  auto slot = host::SlotDirectory::claim(std::move(reply));
  if (!slot.ok()) {
    if (slot.error().code == EBUSY) log_slot_holders();
    return slot.error();
  }
  directory = std::move(slot.value());
  auto opened = open_wire(device);
  if (!opened.ok()) return opened.error();
  wire = opened.value().get();
  add_local_medium(device, std::move(opened.value()));
  return decorate();
}

// Other hosts are reached through the first wire that this machine permits.
Result<std::unique_ptr<datapath::WireDatapath>> LaneDatapath::open_wire(const DeviceInfo& device) {
  const datapath::WireOptions options{.interface_index = device.interface_index,
                                      .receive_buffer_bytes = config().receive_buffer,
                                      .steering = config().steering};
  Error last{ENODEV, "no wire"};
  for (const datapath::WireKind& kind : datapath::wires()) {
    auto opened = kind.open(options, *directory);
    if (opened.ok()) return opened;
    last = opened.error();
    log(LogLevel::Warning, "%s: no %s: %s", device.name.c_str(), kind.name, last.why);
  }
  return last;
}

void LaneDatapath::abandon() {
  abandoned_.all = std::move(all);
  wire = nullptr;
  local = nullptr;
  abandoned_.directory = std::move(directory);
}

void LaneDatapath::revoke_copies_through(wire::Qpn qpn, wire::Qpn peer,
                                         datapath::RevokedCopies& copies) {
  datapath::PeerAccess* const access = peer_access();
  if (access != nullptr && access->take_withdrawn(qpn)) {
    access->revoke_copies_of(peer.slot(), copies);
  }
}

// Peers on this host are reached through a local medium, such as shared memory: the first one that
// this machine permits. Captures and faults need packets in wire format, so the medium then
// transports only such packets.
void LaneDatapath::add_local_medium(const DeviceInfo& device,
                                    std::unique_ptr<datapath::WireDatapath> opened) {
  const Config& c = config();
  const datapath::LocalMediumOptions options{
      .slot = directory->slot(),
      .interface_index = device.interface_index,
      .wire_packets_only = !c.faults.empty() || !c.pcap.empty()};
  std::unique_ptr<datapath::LocalMedium> medium;
  for (const datapath::LocalMediumKind& kind : datapath::local_media()) {
    if (c.datapath == DatapathChoice::Udp || medium != nullptr) break;
    auto candidate = kind.open(options);
    if (candidate.ok()) {
      medium = std::move(candidate.value());
    } else {
      log(LogLevel::Warning, "%s: no %s with processes of this host: %s", device.name.c_str(),
          kind.name, candidate.error().why);
    }
  }
  if (medium == nullptr) {
    all = std::move(opened);
    return;
  }
  auto selecting = std::make_unique<datapath::SelectingDatapath>(
      std::move(opened), std::move(medium), device.interface_index);
  local = selecting.get();
  all = std::move(selecting);
}

// Puts the decorators of the environment around the datapath.
Status LaneDatapath::decorate() {
  if (!config().faults.empty()) {
    auto faults = datapath::parse_faults(config().faults);
    if (!faults.ok()) {
      log(LogLevel::Error, "VERBENA_FAULTS=%s: %s", config().faults.c_str(), faults.error().why);
      return faults.error();
    }
    all = std::make_unique<datapath::FaultyDatapath>(std::move(all), faults.value());
  }
  if (!config().pcap.empty()) {
    std::string file = config().pcap;
    if (const size_t at = file.find("%p"); at != std::string::npos) {
      file.replace(at, 2, std::to_string(getpid()));
    }
    // The first lane of the program starts a new file. Other lanes and devices append to it, and
    // those of forked children do if it is the same one.
    static std::atomic<pid_t> begun_by{0};
    const pid_t before = begun_by.exchange(getpid());
    const bool append = before == getpid() || (before != 0 && config().pcap == file);
    auto pcap = datapath::PcapDatapath::open(
        std::move(all), file.c_str(), append, wall_clock_ns, [file](int error) {
          log(LogLevel::Warning, "VERBENA_PCAP: writing the capture %s failed, it ends here: %s",
              file.c_str(), std::strerror(error));
        });
    if (!pcap.ok()) {
      log(LogLevel::Error, "VERBENA_PCAP=%s: %s", config().pcap.c_str(), pcap.error().why);
      return pcap.error();
    }
    all = std::move(pcap.value());
  }
  return {};
}

}  // namespace verbena::runtime
