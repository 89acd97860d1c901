// UDP and shared memory side by side: each packet goes through memory where there is a link to its
// peer's process, and over UDP where there is none. Paths are UDP's; a link that opens or ends
// later changes the medium under them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "datapath/datapath.h"
#include "datapath/shm/shm_datapath.h"
#include "datapath/udp/udp_datapath.h"
#include "wire/local_peer.h"

namespace verbena::datapath {

class SelectingDatapath final : public Datapath, private wire::PacketSink, private wire::LocalPeer {
 public:
  SelectingDatapath(std::unique_ptr<UdpDatapath> udp, std::unique_ptr<ShmDatapath> shm,
                    uint32_t interface_index);

  // Wants shared memory with the peer where that is possible. False: it has been called and has not
  // answered yet; ask again a little later. Otherwise a path may be opened now, and receive()
  // comes next.
  bool reach(const wire::Gid& destination, wire::Qpn peer, Instant now);

  // The owner is about to wait for wait_fd(). False: it need not, something is there.
  bool arm() { return shm_->arm(); }
  // It waits no longer.
  void disarm();
  // So much since the receive() before: what is not looked at each time is due the sooner.
  void pass(Duration time);
  // wait_fd() woke the owner, and not with packets.
  void attend() { shm_->attend(); }
  // Some paths may carry less than they did: see packet_bytes().
  bool anything_gone() const { return shm_->anything_gone(); }
  bool take_gone() { return shm_->take_gone(); }
  // What peers may do in this process's memory by themselves.
  ShmDatapath& shared_memory() { return *shm_; }
  std::optional<std::string> take_notice() { return shm_->take_notice(); }

  void report_ip_headers() override { udp_->report_ip_headers(); }
  Result<wire::PathId> open_path(const wire::Route& route) override;
  void close_path(wire::PathId path) override;
  std::span<const wire::RxPacket> receive() override;
  std::span<const wire::RxPacket> linger() override { return shm_->linger(); }
  void release() override { shm_->release(); }
  bool pending() const override { return udp_->pending(); }
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
  void push_to_udp(const wire::TxPacket& packet);
  bool is_full(wire::PathId path) const override;
  bool is_asleep(wire::PathId path) const override;
  bool send_short_ack(wire::PathId path, const wire::Acknowledgement& acknowledgement) override;
  bool access(const wire::OneSided& request) override;
  bool retract(const wire::Unread& requests) override;
  const Path* find(wire::PathId path) const;
  Link* link_of(wire::PathId path) const;
  struct Carrier {
    Link* link = nullptr;
    uint8_t number = 0;  // of the path's addresses
  };
  Carrier carrier_of(wire::PathId path);  // no link: it is UDP
  static bool number(Path& path, Link& link);

  std::unique_ptr<UdpDatapath> udp_;
  std::unique_ptr<ShmDatapath> shm_;
  const uint32_t interface_index_;
  os::UniqueFd epoll_;
  std::vector<Path> paths_;  // by PathId
  size_t pushed_ = 0;        // bytes into rings since the last flush
  bool to_udp_ = false;      // something went there since the last flush
  uint32_t looks_ = 0;       // at the rings, since UDP was looked at
  uint32_t udp_every_ = 1;
  bool memory_first_ = true;
};

}  // namespace verbena::datapath
