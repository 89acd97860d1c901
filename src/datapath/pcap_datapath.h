// PcapDatapath: a decorator that writes all packets to a capture file, with IP and UDP headers as
// on the wire, so that packet analysers can read it. It works for every datapath: shared memory
// carries the same packets, without headers below the BTH and without ICRC. The format is
// nanosecond pcap of raw IP packets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "datapath/datapath.h"
#include "datapath/packets_only.h"
#include "os/unique_fd.h"

namespace verbena::datapath {

class PcapDatapath final : public Datapath, private wire::PacketSink {
 public:
  // Nanoseconds since 1970.
  using WallClock = std::function<uint64_t()>;
  // A write failed with this errno. The capture ends; the network continues.
  using OnEnd = std::function<void(int error)>;

  // `append` continues an existing file.
  static Result<std::unique_ptr<PcapDatapath>> open(std::unique_ptr<Datapath> inner,
                                                    const char* file_name, bool append,
                                                    WallClock clock, OnEnd on_end);

  Result<wire::PathId> open_path(const wire::Route& route) override;
  void close_path(wire::PathId path) override { inner_->close_path(path); }
  std::span<const wire::RxPacket> receive() override;
  void release() override { inner_->release(); }
  void report_ip_headers() override { inner_->report_ip_headers(); }
  bool pending() const override { return inner_->pending(); }
  wire::PacketSink& sink() override { return *this; }
  void flush() override;
  int wait_fd() const override { return inner_->wait_fd(); }
  void append_counters(std::vector<Counter>& to) const override;

 private:
  PcapDatapath(std::unique_ptr<Datapath> inner, os::UniqueFd file, WallClock clock, OnEnd on_end);
  size_t room() const override { return inner_->sink().room(); }
  void push(const wire::TxPacket& packet) override;
  void write(const wire::RxMeta& addressing, std::span<const std::byte> packet, uint64_t time_ns);
  void append(std::span<const std::byte> bytes);
  void flush_file();
  void end();

  std::unique_ptr<Datapath> inner_;
  PacketsOnly local_peer_;
  const std::unique_ptr<std::byte[]> buffer_;  // of the file
  os::UniqueFd file_;                          // none after a failed write
  WallClock clock_;
  OnEnd on_end_;
  std::vector<wire::RxMeta> addressing_of_path_;  // by PathId
  std::vector<std::byte> scratch_;
  size_t buffered_ = 0;  // bytes in the buffer
  uint64_t written_ = 0;
};

}  // namespace verbena::datapath
