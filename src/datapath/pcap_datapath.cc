// The capture file's format, and the headers that packets lack at this level.
#include "datapath/pcap_datapath.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/exhaustion.h"
#include "datapath/capture_file.h"
#include "os/no_cancel.h"
#include "wire/icrc.h"

namespace verbena::datapath {
namespace {

constexpr uint32_t kNanosecondMagic = 0xA1B23C4D;
constexpr uint32_t kSnapshotBytes = 65535;
constexpr uint32_t kLinkTypeRaw = 101;  // each record starts with an IP header
constexpr size_t kLargestHeaders = 48;
// The real source port is known only to the inner datapath.
constexpr uint16_t kSourcePort = 0xC000;
constexpr size_t kFileBuffer = 1u << 20;

struct FileHeader {
  uint32_t magic = kNanosecondMagic;
  uint16_t major = 2;
  uint16_t minor = 4;
  uint32_t zone = 0;
  uint32_t accuracy = 0;
  uint32_t snapshot_bytes = kSnapshotBytes;
  uint32_t link_type = kLinkTypeRaw;
};
static_assert(sizeof(FileHeader) == 24);

struct RecordHeader {
  uint32_t seconds;
  uint32_t nanoseconds;
  uint32_t captured_bytes;
  uint32_t original_bytes;
};
static_assert(sizeof(RecordHeader) == 16);

}  // namespace

Result<std::unique_ptr<PcapDatapath>> PcapDatapath::open(std::unique_ptr<Datapath> inner,
                                                         const char* file_name, bool append,
                                                         WallClock clock, OnEnd on_end) {
  os::UniqueFd file = open_capture_file(file_name, append);
  if (!file.valid()) return Error{errno, "cannot create the capture file"};
  const FileHeader header;
  const bool fresh = ::lseek(file.get(), 0, SEEK_END) == 0;
  if (fresh && ::write(file.get(), &header, sizeof header) != ssize_t{sizeof header}) {
    return Error{errno, "cannot write to the capture file"};
  }
  return std::unique_ptr<PcapDatapath>(
      new PcapDatapath(std::move(inner), std::move(file), std::move(clock), std::move(on_end)));
}

PcapDatapath::PcapDatapath(std::unique_ptr<Datapath> inner, os::UniqueFd file, WallClock clock,
                           OnEnd on_end)
    : PacketSink(inner->sink().local_peer() != nullptr ? &local_peer_ : nullptr),
      inner_(std::move(inner)),
      local_peer_(inner_->sink().local_peer()),
      buffer_(std::make_unique<std::byte[]>(kFileBuffer)),
      file_(std::move(file)),
      clock_(std::move(clock)),
      on_end_(std::move(on_end)) {}

// Flushed after every batch: a capture is most useful if the process crashes afterwards.
void PcapDatapath::flush_file() {
  size_t done = 0;
  while (file_.valid() && done < buffered_) {
    const ssize_t n = ::write(file_.get(), buffer_.get() + done, buffered_ - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      end();
    }
  }
  buffered_ = 0;
}

void PcapDatapath::append(std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, buffer_.get() + buffered_);
  buffered_ += bytes.size();
}

void PcapDatapath::end() {
  const int error = errno;
  file_.reset();
  on_end_(error);
}

Result<wire::PathId> PcapDatapath::open_path(const wire::Route& route) {
  auto path = inner_->open_path(route);
  if (!path.ok()) return path;
  const auto id = static_cast<size_t>(path.value());
  if (id >= addressing_of_path_.size()) addressing_of_path_.resize(id + 1);
  addressing_of_path_[id] = {route.source, route.destination, route.traffic_class, route.hop_limit};
  return path;
}

std::span<const wire::RxPacket> PcapDatapath::receive() {
  const auto packets = inner_->receive();
  if (packets.empty()) return packets;
  const os::NoCancel no_cancel;
  const uint64_t now_ns = clock_();
  for (const wire::RxPacket& p : packets) {
    if (p.meta == nullptr) continue;
    if (p.separate_payload.empty()) {
      write(*p.meta, p.bytes, now_ns);
      continue;
    }
    (void)try_allocating([&] {
      scratch_.assign(p.bytes.begin(), p.bytes.end());
      scratch_.insert(scratch_.end(), p.separate_payload.begin(), p.separate_payload.end());
      write(*p.meta, scratch_, now_ns);
    });
  }
  flush_file();
  return packets;
}

// The application may change the payload at any time, so the recorded copy is the one that is sent.
void PcapDatapath::push(const wire::TxPacket& packet) {
  const os::NoCancel no_cancel;
  const bool copied = try_allocating([&] {
    scratch_.assign(packet.header.begin(), packet.header.begin() + packet.header_bytes);
    for (const auto& part : packet.payload) {
      scratch_.insert(scratch_.end(), part.begin(), part.end());
    }
    scratch_.reserve(scratch_.size() + packet.pad);
  });
  if (!copied) return inner_->sink().push(packet);  // sent, but not captured
  const std::span<const std::byte> payload =
      std::span<const std::byte>(scratch_).subspan(packet.header_bytes);
  wire::TxPacket copy = packet;
  copy.payload = {&payload, 1};
  inner_->sink().push(copy);
  scratch_.resize(scratch_.size() + packet.pad);
  const auto id = static_cast<size_t>(packet.path);
  if (id >= addressing_of_path_.size()) return;
  wire::RxMeta addressing = addressing_of_path_[id];
  if (!packet.ecn_capable) addressing.traffic_class = wire::dscp_of(addressing.traffic_class);
  write(addressing, scratch_, clock_());
}

void PcapDatapath::flush() {
  const os::NoCancel no_cancel;
  inner_->flush();
  flush_file();
}

void PcapDatapath::write(const wire::RxMeta& addressing, std::span<const std::byte> packet,
                         uint64_t time_ns) {
  const size_t datagram_bytes = packet.size() + wire::kIcrcBytes;
  if (!file_.valid() || packet.size() < wire::kBthBytes ||
      datagram_bytes + kLargestHeaders > kSnapshotBytes) {
    return;
  }
  const wire::IcrcFlow flow{addressing.source, addressing.destination, kSourcePort,
                            wire::kRoceUdpPort};
  std::array<std::byte, sizeof(RecordHeader) + kLargestHeaders> front;
  std::byte* const headers = front.data() + sizeof(RecordHeader);
  const size_t header_bytes = wire::store_ip_udp_headers(
      flow, addressing.traffic_class, addressing.hop_limit, datagram_bytes, headers);
  const auto bytes = static_cast<uint32_t>(header_bytes + datagram_bytes);
  // One write() has whole records only, since others may append to the file in between.
  if (buffered_ + sizeof(RecordHeader) + bytes > kFileBuffer) flush_file();
  if (!file_.valid()) return;
  const RecordHeader record{static_cast<uint32_t>(time_ns / 1'000'000'000),
                            static_cast<uint32_t>(time_ns % 1'000'000'000), bytes, bytes};
  std::memcpy(front.data(), &record, sizeof record);

  std::array<std::byte, wire::kBthBytes> bth;
  std::memcpy(bth.data(), packet.data(), bth.size());
  const uint32_t crc = crc32(wire::icrc_over_bth(wire::icrc_prefix(flow, datagram_bytes), bth),
                             packet.subspan(bth.size()));
  std::array<std::byte, wire::kIcrcBytes> icrc;
  wire::store_icrc(icrc.data(), crc);

  append(std::span(front).first(sizeof record + header_bytes));
  append(packet);
  append(icrc);
  ++written_;
}

void PcapDatapath::append_counters(std::vector<Counter>& to) const {
  inner_->append_counters(to);
  to.push_back(
      {"pcap_packets_written", written_, "packets written to the capture file (VERBENA_PCAP)"});
}

}  // namespace verbena::datapath
