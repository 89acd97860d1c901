// recvmmsg, GRO, and the metadata of packets: addresses, traffic class, hop limit.
#include "datapath/udp/udp_receiver.h"

#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/exhaustion.h"
#include "datapath/udp/clock.h"
#include "os/no_cancel.h"
#include "os/socket_options.h"

namespace verbena::datapath {
namespace {

constexpr size_t kBatches = 8;  // per receive(): half a megabyte at most
constexpr size_t kBatchBytes = 65536;
// The page offset of a batch. Zero-copy batches begin at a page boundary (zero_copy_sender.h), and
// the kernel copies them page by page. AMD's processors copy slowly if the page offset of the
// destination is a few bytes above the source's, as it is with malloc.
constexpr size_t kPage = 4096;
constexpr size_t kPageOffset = kPage / 2;
constexpr size_t kUsualSegments = 64;
constexpr size_t kSmallestDatagram = wire::kBthBytes + wire::kIcrcBytes;
constexpr size_t kSlotOffset = 5;  // top byte of the BTH's destination QPN
constexpr uint8_t kMulticastSlot = 255;
// An application may call receive() in a loop, so most calls skip the system call for the
// directory. But misrouted packets are received in bursts, and a Unix socket queues few.
constexpr uint32_t kDirectoryEvery = 32;
constexpr uint32_t kDirectoryPolls = 256;

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int)) * 3 + 64;

// The control messages of a batch.
struct Ancillary {
  size_t stride = 0;  // 0: a single datagram
  uint8_t traffic_class = 0;
  uint8_t hop_limit = kDefaultHopLimit;  // see report_ip_headers()
};

template <typename T>
T value_of(const cmsghdr* c) {
  T value;
  std::memcpy(&value, CMSG_DATA(c), sizeof value);
  return value;
}

Ancillary parse_control(msghdr& m) {
  Ancillary a;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
      a.stride = static_cast<size_t>(std::max(0, value_of<int>(c)));
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      a.traffic_class = value_of<uint8_t>(c);
    } else if ((c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL) ||
               (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_HOPLIMIT)) {
      a.hop_limit = static_cast<uint8_t>(value_of<int>(c));
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      a.traffic_class = static_cast<uint8_t>(value_of<int>(c));
    }
  }
  return a;
}

}  // namespace

struct UdpReceiver::Messages {
  std::array<mmsghdr, kBatches> headers{};
  std::array<iovec, kBatches> parts{};
  std::array<sockaddr_storage, kBatches> senders{};
  alignas(cmsghdr) std::array<std::array<std::byte, kControlBytes>, kBatches> controls{};
  std::array<wire::RxMeta, kBatches> metas{};
  std::unique_ptr<std::byte[]> memory =
      std::make_unique_for_overwrite<std::byte[]>(kBatches * kBatchBytes + kPage);

  Messages() {
    const size_t in_page = reinterpret_cast<uintptr_t>(memory.get()) % kPage;
    std::byte* const bytes = memory.get() + (kPage + kPageOffset - in_page) % kPage;
    for (size_t i = 0; i < kBatches; ++i) {
      parts[i] = {bytes + i * kBatchBytes, kBatchBytes};
      msghdr& m = headers[i].msg_hdr;
      m.msg_iov = &parts[i];
      m.msg_iovlen = 1;
      m.msg_name = &senders[i];
      m.msg_control = controls[i].data();
      reset(i);
    }
  }
  // Returns the number of batches read. Avoids the C library, whose functions are cancellation
  // points and therefore slower.
  size_t read(int fd, size_t requested) {
    if (requested == 1) {  // the usual case for a polling thread; recvmsg is faster
      const long length = ::syscall(SYS_recvmsg, fd, &headers[0].msg_hdr, MSG_DONTWAIT);
      if (length < 0) return 0;
      headers[0].msg_len = static_cast<unsigned>(length);
      return 1;
    }
    const long n = ::syscall(SYS_recvmmsg, fd, headers.data(), requested, MSG_DONTWAIT, nullptr);
    return static_cast<size_t>(std::max(0L, n));
  }
  // Reads one datagram. The socket must contain no batches.
  size_t read_datagram(int fd) {
    msghdr& m = headers[0].msg_hdr;
    const long length = ::syscall(SYS_recvfrom, fd, parts[0].iov_base, parts[0].iov_len,
                                  MSG_DONTWAIT, m.msg_name, &m.msg_namelen);
    if (length < 0) return 0;
    headers[0].msg_len = static_cast<unsigned>(length);
    m.msg_controllen = 0;
    return 1;
  }
  // The kernel overwrites these sizes.
  void reset(size_t i) {
    headers[i].msg_hdr.msg_namelen = sizeof senders[i];
    headers[i].msg_hdr.msg_controllen = kControlBytes;
  }
};

UdpReceiver::UdpReceiver(const std::vector<std::unique_ptr<UdpEndpoint>>& endpoints, int epoll_fd,
                         host::SlotDirectory& directory, host::Mailbox& mailbox,
                         UdpCounters& counters, const UdpOptions& options)
    : endpoints_(endpoints),
      epoll_fd_(epoll_fd),
      directory_(directory),
      mailbox_(mailbox),
      counters_(counters),
      options_(options),
      messages_(std::make_unique<Messages>()) {
  packets_.reserve(kBatches * kUsualSegments);
}

UdpReceiver::~UdpReceiver() = default;

std::span<const wire::RxPacket> UdpReceiver::receive() {
  packets_.clear();
  if (directory_polls_ > 0) --directory_polls_;
  if (directory_polls_ > 0 || ++calls_ % kDirectoryEvery == 0) poll_directory();
  if (UdpEndpoint* const endpoint = ready_endpoint()) read(*endpoint);
  deliver_misrouted();
  return packets_;
}

// The endpoint to read from next. A single one is read without epoll. Among several, epoll rotates
// the ready ones, so that none starves.
UdpEndpoint* UdpReceiver::ready_endpoint() {
  if (endpoints_.size() == 1) return endpoints_.front().get();
  epoll_event event{};
  if (endpoints_.empty()) return nullptr;
  if (::syscall(SYS_epoll_pwait, epoll_fd_, &event, 1, 0, nullptr, 0) != 1) {
    for (const auto& endpoint : endpoints_) {
      if (endpoint->steering) endpoint->steering->on_drained();
    }
    return nullptr;
  }
  if (event.data.u64 == kDirectoryReady) {
    poll_directory();
    return nullptr;
  }
  return event.data.u64 < endpoints_.size() ? endpoints_[event.data.u64].get() : nullptr;
}

void UdpReceiver::read(UdpEndpoint& endpoint) {
  const int fd = endpoint.receive_fd.get();
  const bool single = endpoint.gro.is_drained();
  const size_t requested = single ? 1 : batches_requested_;
  const size_t n = single ? messages_->read_datagram(fd) : messages_->read(fd, requested);
  if (n < requested && endpoint.steering) endpoint.steering->on_drained();
  // If more batches are requested than there are, the kernel polls the empty socket once, which
  // delays a single message.
  batches_requested_ =
      n == requested ? std::min(2 * n, kBatches) : std::max({n, requested / 2, size_t{1}});
  const uint64_t before = counters_.packets_received;
  for (size_t i = 0; i < n; ++i) {
    if (!try_allocating([&] { receive_batch(endpoint, i); })) ++counters_.out_of_memory;
    messages_->reset(i);
  }
  // With several endpoints there are no empty polls, which are what recvfrom makes faster.
  if (endpoints_.size() == 1 || endpoint.gro.is_disabled()) {
    apply(endpoint.gro.after_read(n, counters_.packets_received - before), fd);
  }
}

void UdpReceiver::receive_batch(UdpEndpoint& endpoint, size_t message) {
  mmsghdr& header = messages_->headers[message];
  const sockaddr_storage& sender = messages_->senders[message];
  const Ancillary a = parse_control(header.msg_hdr);
  const std::span<std::byte> batch(static_cast<std::byte*>(header.msg_hdr.msg_iov->iov_base),
                                   header.msg_len);

  ++counters_.batches_received;

  wire::RxMeta& meta = messages_->metas[message];
  meta.source = host::SocketAddress::gid_of(sender);
  meta.destination = endpoint.address.gid;
  meta.traffic_class = a.traffic_class;
  meta.hop_limit = a.hop_limit;
  meta.own = endpoint.is_group && sent_by_us(meta.source, host::SocketAddress::port_of(sender));
  const size_t stride = a.stride != 0 ? a.stride : batch.size();
  if (endpoint.steering && endpoint.steering->take_probe(batch, meta.source)) return;
  split(endpoint, batch, stride, host::SocketAddress::port_of(sender), meta);
}

// The kernel steers a batch by its first packet, so the slot of every packet is checked. Adjacent
// misrouted packets of one slot are forwarded together.
void UdpReceiver::split(UdpEndpoint& endpoint, std::span<std::byte> batch, size_t stride,
                        uint16_t source_port, const wire::RxMeta& meta) {
  const wire::IcrcFlow flow{meta.source, meta.destination, source_port, wire::kRoceUdpPort};
  if (verifier_.flow() != flow) verifier_ = wire::IcrcVerifier(flow);
  uint8_t misrouted_slot = 0;
  size_t misrouted_begin = 0;
  size_t misrouted_end = 0;
  const auto forward_misrouted = [&] {
    if (misrouted_end == misrouted_begin) return;
    forward(endpoint, misrouted_slot,
            batch.subspan(misrouted_begin, misrouted_end - misrouted_begin), stride, meta);
    misrouted_begin = misrouted_end = 0;
  };

  uint32_t segment = 0;
  for (size_t at = 0; at < batch.size(); at += stride, ++segment) {
    const std::span<std::byte> datagram = batch.subspan(at, std::min(stride, batch.size() - at));
    if (datagram.size() < kSmallestDatagram) {
      ++counters_.too_short;
      continue;
    }
    const wire::IcrcMatch match = verifier_.check(datagram, segment);
    if (match == wire::IcrcMatch::No) {
      ++counters_.icrc_errors;
      continue;
    }
    if (match == wire::IcrcMatch::Solved) ++counters_.icrc_solved;
    const uint8_t slot = load_u8(datagram.data() + kSlotOffset);
    if (is_ours(slot)) {
      accept(datagram, meta);
      continue;
    }
    if (slot != misrouted_slot || at != misrouted_end) {
      forward_misrouted();
      misrouted_slot = slot;
      misrouted_begin = at;
    }
    misrouted_end = at + datagram.size();
  }
  forward_misrouted();
}

void UdpReceiver::forward(UdpEndpoint& endpoint, uint8_t slot, std::span<const std::byte> bytes,
                          size_t stride, const wire::RxMeta& meta) {
  const os::NoCancel no_cancel;
  const uint64_t packets = (bytes.size() + stride - 1) / stride;
  if (directory_.forward(slot, endpoint.address, meta, bytes, static_cast<uint32_t>(stride)) ==
      host::Forwarded::Yes) {
    counters_.misrouted_forwarded += packets;
    // A misrouted packet shows that the steering program is out of date only if its slot is in use.
    if (endpoint.steering) endpoint.steering->on_misrouted(read_clock(options_));
  } else {
    counters_.misrouted_dropped += packets;
  }
}

void UdpReceiver::accept(std::span<const std::byte> datagram, const wire::RxMeta& meta) {
  ++counters_.packets_received;
  counters_.bytes_received += datagram.size();
  packets_.push_back({datagram.first(datagram.size() - wire::kIcrcBytes), &meta});
}

bool UdpReceiver::is_ours(uint8_t slot) const {
  return slot == directory_.slot() || slot == 0 || slot == kMulticastSlot;
}

bool UdpReceiver::may_be_forwarded(wire::Qpn to) const {
  return to.slot() == directory_.slot() || to == wire::kManagementQpn;
}

bool UdpReceiver::sent_by_us(const wire::Gid& source, uint16_t port) const {
  return std::ranges::any_of(endpoints_, [&](const auto& endpoint) {
    return endpoint->address.gid == source && endpoint->send.port == port;
  });
}

// Messages that are lost for lack of memory are recovered by retransmissions and later reports.
void UdpReceiver::poll_directory() {
  if (try_allocating([&] { read_directory(); })) return;
  ++counters_.out_of_memory;
  reports_.clear();
}

void UdpReceiver::read_directory() {
  const os::NoCancel no_cancel;
  directory_.poll(&mailbox_);
  mailbox_.take(misrouted_pending_, reports_);
  if (!misrouted_pending_.empty()) directory_polls_ = kDirectoryPolls;
  for (const auto& endpoint : endpoints_) {
    if (!endpoint->steering) continue;
    for (const host::MemberReport& report : reports_) endpoint->steering->on_report(report);
    endpoint->steering->tick(read_clock(options_));
  }
  reports_.clear();
}

// A packet is forwarded at most once, so two lanes cannot bounce it between them: if it is not
// for this lane either, it is dropped. Management datagrams are for any process; their
// RxMeta::forwarded keeps the owner from forwarding them again.
void UdpReceiver::deliver_misrouted() {
  if (misrouted_pending_.empty() && misrouted_delivered_.empty()) return;
  misrouted_delivered_.clear();
  std::swap(misrouted_delivered_, misrouted_pending_);
  for (host::MisroutedPackets& forwarded : misrouted_delivered_) {
    const std::span<const std::byte> bytes = forwarded.bytes;
    for (size_t at = 0; at < bytes.size(); at += forwarded.stride) {
      const auto datagram =
          bytes.subspan(at, std::min<size_t>(forwarded.stride, bytes.size() - at));
      if (datagram.size() < kSmallestDatagram ||
          !may_be_forwarded(wire::Qpn(load_be24(datagram.data() + kSlotOffset)))) {
        ++counters_.misrouted_dropped;
        continue;
      }
      ++counters_.misrouted_received;
      if (!try_allocating([&] { accept(datagram, forwarded.meta); })) ++counters_.out_of_memory;
    }
  }
}

}  // namespace verbena::datapath
