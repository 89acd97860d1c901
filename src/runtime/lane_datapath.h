// LaneDatapath: the slot of a lane and its datapath, composed as configured: a wire, a local medium
// beside it, and decorators around them.
#pragma once

#include <memory>

#include "base/result.h"
#include "datapath/datapath.h"
#include "datapath/peer_access.h"
#include "datapath/selecting_datapath.h"
#include "datapath/wire_datapath.h"
#include "host/slot_directory.h"
#include "runtime/devices.h"

namespace verbena::runtime {

struct LaneDatapath {
  // `reply` returns the counters for a process that queries them.
  Status open(const DeviceInfo& device, host::SlotDirectory::CountersText reply);
  // Closes the descriptors. In the child of a fork the parent's stay open.
  void close();

  // The peers' access to this process's memory; null: none.
  datapath::PeerAccess* peer_access() { return local != nullptr ? local->peer_access() : nullptr; }
  // A queue pair ended or changed. Only its peer can access memory through it.
  void revoke_copies_through(wire::Qpn qpn, wire::Qpn peer, datapath::RevokedCopies& copies);

  std::unique_ptr<host::SlotDirectory> directory;
  std::unique_ptr<datapath::Datapath> all;       // with its decorators; null: closed
  datapath::WireDatapath* wire = nullptr;        // the innermost
  datapath::SelectingDatapath* local = nullptr;  // null: without a local medium

 private:
  Result<std::unique_ptr<datapath::WireDatapath>> open_wire(const DeviceInfo& device);
  void add_local_medium(const DeviceInfo& device, std::unique_ptr<datapath::WireDatapath> opened);
  Status decorate();
};

}  // namespace verbena::runtime
