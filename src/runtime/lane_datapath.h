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
  // In the child of a fork: the datapath is the parent's, and closed here. Frees nothing.
  void abandon();

  // The peers' access to this process's memory; null: none.
  datapath::PeerAccess* peer_access() { return local != nullptr ? local->peer_access() : nullptr; }
  // A queue pair ended or changed. Only its peer can access memory through it.
  void revoke_copies_through(wire::Qpn qpn, wire::Qpn peer, datapath::RevokedCopies& copies);

  std::unique_ptr<host::SlotDirectory> directory;
  std::unique_ptr<datapath::Datapath> all;       // with its decorators; null: closed
  datapath::WireDatapath* wire = nullptr;        // the innermost
  datapath::SelectingDatapath* local = nullptr;  // null: without a local medium

 private:
  // In the child of a fork: objects of the parent that wait for an ordinary call to destroy them.
  struct {
    std::unique_ptr<host::SlotDirectory> directory;
    std::unique_ptr<datapath::Datapath> all;  // uses the directory
  } abandoned_;

  Result<std::unique_ptr<datapath::WireDatapath>> open_wire(const DeviceInfo& device);
  void add_local_medium(const DeviceInfo& device, std::unique_ptr<datapath::WireDatapath> opened);
  Status decorate();
};

}  // namespace verbena::runtime
