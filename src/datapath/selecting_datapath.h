// The wire and local media side by side: each packet takes the first medium that has a link to its
// peer's process, and the wire where none has. Paths are the wire's; a link that opens or ends
// later changes the medium under them.
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
  using Media = std::vector<std::unique_ptr<LocalMedium>>;  // in order of preference
  SelectingDatapath(std::unique_ptr<Datapath> wire, Media media, uint32_t interface_index);

  // Asks for a link to the peer where that is possible. False: the peer has not replied yet; ask
  // again a little later. Otherwise a path may be opened now, and receive() comes next.
  bool reach(const wire::Gid& destination, wire::Qpn peer, Instant now);

  // The owner is about to wait for wait_fd(). False: it need not, something is there.
  bool arm();
  // It waits no longer.
  void disarm();
  // So much since the receive() before: what is not looked at each time is due the sooner.
  void pass(Duration time);
  // wait_fd() woke the owner, and not with packets.
  void attend();
  // Some paths may carry less than they did: see packet_bytes().
  bool anything_gone() const;
  void take_gone();
  // What peers may do in this process's memory by themselves; null: no medium lets them.
  PeerAccess* peer_access();
  std::optional<std::string> take_notice();

  void report_ip_headers() override { wire_->report_ip_headers(); }
  Result<wire::PathId> open_path(const wire::Route& route) override;
  void close_path(wire::PathId path) override;
  std::span<const wire::RxPacket> receive() override;
  std::span<const wire::RxPacket> busy_poll() override;
  void release() override;
  bool pending() const override { return wire_->pending(); }
  wire::PacketSink& sink() override { return *this; }
  void flush() override;
  int wait_fd() const override { return epoll_.get(); }
  uint32_t packet_bytes(wire::PathId path) override;
  void append_counters(std::vector<Counter>& to) const override;

 private:
  struct Path {
    uint8_t slot = 0;  // of the peer, if it is on this host; else 0, which nobody has
    uint8_t number = 0;
    uint32_t numbered_for = 0;  // the link on which `number` stands for the addresses
    Addresses addresses;
  };

  size_t room() const override;
  void push(const wire::TxPacket& packet) override;
  void push_to_wire(const wire::TxPacket& packet);
  std::span<const wire::RxPacket> receive_locally();
  bool is_full(wire::PathId path) const override;
  bool is_asleep(wire::PathId path) const override;
  bool send_short_ack(wire::PathId path, const wire::Ack& ack) override;
  bool access(const wire::OneSided& request) override;
  bool retract(const wire::Unread& requests) override;
  const Path* find(wire::PathId path) const;
  LocalLink* link_to(uint8_t slot) const;
  LocalLink* link_of(wire::PathId path) const;
  struct Carrier {
    LocalLink* link = nullptr;
    uint8_t number = 0;  // of the path's addresses
  };
  Carrier carrier_of(wire::PathId path);  // no link: it is the wire
  static bool number(Path& path, LocalLink& link);

  std::unique_ptr<Datapath> wire_;
  wire::PacketSink& wire_sink_;
  const Media media_;
  const uint32_t interface_index_;
  os::UniqueFd epoll_;
  std::vector<Path> paths_;  // by PathId
  size_t pushed_ = 0;        // bytes into local media since the last flush
  bool to_wire_ = false;     // something went there since the last flush
  uint32_t looks_ = 0;       // at local media, since the wire was looked at
  uint32_t wire_every_ = 1;
  bool local_first_ = true;
  size_t next_medium_ = 0;  // whose packets are taken first
};

}  // namespace verbena::datapath
