// SelectingDatapath: the wire and a local medium. Each packet takes the medium if it has a link to
// the peer's process, or else the wire. Paths belong to the wire; a link that opens or ends later
// changes how their packets travel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "datapath/datapath.h"
#include "datapath/local_medium.h"
#include "os/unique_fd.h"
#include "wire/local_peer.h"

namespace verbena::datapath {

class SelectingDatapath final : public Datapath, private wire::PacketSink, private wire::LocalPeer {
 public:
  SelectingDatapath(std::unique_ptr<Datapath> wire, std::unique_ptr<LocalMedium> medium,
                    uint32_t interface_index);

  // Requests a link to the peer if it is on this host. False: the peer has not replied yet; call
  // again later. Otherwise a path may be opened now; call receive() next.
  bool reach(const wire::Gid& destination, wire::Qpn peer, Instant now);

  // The owner is about to wait for wait_fd(). False: packets are already there.
  bool arm();
  // The owner no longer waits.
  void disarm();
  // This much time has passed since the last receive(): the next poll of the wire is due sooner.
  void pass(Duration time) {
    passed_ = passed_ + time;
    if (passed_ >= kPassStep) [[unlikely]]
      pass_on();
  }
  // wait_fd() woke the owner, but there are no packets.
  void attend() { medium_->attend(); }
  // A link has ended: packet_bytes() of some paths may be smaller than before.
  bool anything_gone() const { return medium_->anything_gone(); }
  void take_gone() { medium_->take_gone(); }
  // The peers' access to this process's memory; null: the medium does not offer it.
  PeerAccess* peer_access() { return medium_->peer_access(); }
  std::optional<std::string> take_notice() { return medium_->take_notice(); }

  void report_ip_headers() override { wire_->report_ip_headers(); }
  Result<wire::PathId> open_path(const wire::Route& route) override;
  void close_path(wire::PathId path) override;
  std::span<const wire::RxPacket> receive() override;
  std::span<const wire::RxPacket> busy_poll() override { return medium_->busy_poll(); }
  void release() override { medium_->release(); }
  bool pending() const override { return wire_->pending(); }
  wire::PacketSink& sink() override { return *this; }
  void flush() override;
  int wait_fd() const override { return epoll_.get(); }
  uint32_t packet_bytes(wire::PathId path) override;
  void append_counters(std::vector<Counter>& to) const override;

 private:
  // As large as a cache line, so that finding one by its number needs no multiplication.
  struct alignas(64) Path {
    uint8_t slot = 0;  // of the peer if it is on this host; otherwise 0, which no process has
    uint8_t number = 0;
    uint32_t numbered_for = 0;  // the link that `number` is valid for
    Addresses addresses;
  };

  // Elapsed time is passed on in steps of at least this much.
  static constexpr Duration kPassStep = microseconds(4);

  void pass_on();
  size_t room() const override;
  void push(const wire::TxPacket& packet) override;
  void push_run(const wire::TxRun& run) override;
  size_t room_on(wire::PathId path) const override;
  void push_to_wire(const wire::TxPacket& packet);
  bool is_full(wire::PathId id) const override;
  bool is_asleep(wire::PathId path) const override;
  bool send_short_ack(wire::PathId path, const wire::Ack& ack) override;
  bool access(const wire::OneSided& request) override;
  bool retract(const wire::Unread& requests) override;
  const Path* find(wire::PathId path) const;
  LocalLink* link_of(wire::PathId path) const;
  struct LinkAddress {
    LocalLink* link = nullptr;
    uint8_t number = 0;  // of the path's addresses
  };
  LinkAddress link_address_of(wire::PathId path);  // no link: the wire
  static bool assign_number(Path& path, LocalLink& link);

  std::unique_ptr<Datapath> wire_;
  wire::PacketSink& wire_sink_;
  const std::unique_ptr<LocalMedium> medium_;
  const uint32_t interface_index_;
  os::UniqueFd epoll_;
  std::vector<Path> paths_;  // by PathId
  size_t pushed_ = 0;        // bytes into the medium since the last flush
  bool to_wire_ = false;     // packets were pushed to the wire since the last flush
  uint32_t polls_ = 0;       // of the medium, since the last poll of the wire
  uint32_t wire_every_ = 1;
  Duration passed_{};  // elapsed time that the medium has not been told yet
  bool medium_first_ = true;
};

}  // namespace verbena::datapath
