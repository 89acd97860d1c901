// recvmmsg, GRO and what comes with a packet: addresses, traffic class, hop limit.
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

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace verbena::datapath {
namespace {

constexpr size_t kTrains = 8;  // per receive(): half a megabyte at most
constexpr size_t kTrainBytes = 65536;
// Where a batch's bytes begin in a page. Lent batches begin at one (zero_copy_sender.h), and the
// kernel copies them page by page: AMD's processors do that slowly to a place a few bytes further
// on in its page than the source is. malloc would give exactly that.
constexpr size_t kPage = 4096;
constexpr size_t kPlaceInPage = kPage / 2;
constexpr size_t kUsualSegments = 64;
constexpr size_t kSmallestDatagram = wire::kBthBytes + wire::kIcrcBytes;
constexpr size_t kSlotOffset = 5;  // top byte of the BTH's destination QPN
constexpr uint8_t kMulticastSlot = 255;
// An application spins on receive(): the directory must not cost it a system call every time.
// But strays come in bursts, and a Unix socket queues few.
constexpr uint32_t kDirectoryEvery = 32;
constexpr uint32_t kAttentiveCalls = 256;

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int)) * 3 + 64;

// What the kernel says about a batch next to its bytes.
struct Ancillary {
  size_t stride = 0;  // 0: a single datagram
  uint8_t traffic_class = 0;
  uint8_t hop_limit = kDefaultHopLimit;  // the two come only when they were asked for
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
  std::array<mmsghdr, kTrains> headers{};
  std::array<iovec, kTrains> parts{};
  std::array<sockaddr_storage, kTrains> senders{};
  alignas(cmsghdr) std::array<std::array<std::byte, kControlBytes>, kTrains> controls{};
  std::array<wire::RxMeta, kTrains> metas{};
  std::unique_ptr<std::byte[]> memory =
      std::make_unique_for_overwrite<std::byte[]>(kTrains * kTrainBytes + kPage);

  Messages() {
    const size_t in_page = reinterpret_cast<uintptr_t>(memory.get()) % kPage;
    std::byte* const bytes = memory.get() + (kPage + kPlaceInPage - in_page) % kPage;
    for (size_t i = 0; i < kTrains; ++i) {
      parts[i] = {bytes + i * kTrainBytes, kTrainBytes};
      msghdr& m = headers[i].msg_hdr;
      m.msg_iov = &parts[i];
      m.msg_iovlen = 1;
      m.msg_name = &senders[i];
      m.msg_control = controls[i].data();
      reset(i);
    }
  }
  // How many came, of so many asked for. Not through the C library, where each call would be a
  // cancellation point with its price.
  size_t read(int fd, size_t asked) {
    if (asked == 1) {  // the usual case for one who spins: there is a quicker call for it
      const long length = ::syscall(SYS_recvmsg, fd, &headers[0].msg_hdr, MSG_DONTWAIT);
      if (length < 0) return 0;
      headers[0].msg_len = static_cast<unsigned>(length);
      return 1;
    }
    const long n = ::syscall(SYS_recvmmsg, fd, headers.data(), asked, MSG_DONTWAIT, nullptr);
    return static_cast<size_t>(std::max(0L, n));
  }
  // The same of one datagram in a socket in which there are no batches.
  size_t read_datagram(int fd) {
    msghdr& m = headers[0].msg_hdr;
    const long length = ::syscall(SYS_recvfrom, fd, parts[0].iov_base, parts[0].iov_len,
                                  MSG_DONTWAIT, m.msg_name, &m.msg_namelen);
    if (length < 0) return 0;
    headers[0].msg_len = static_cast<unsigned>(length);
    m.msg_controllen = 0;
    return 1;
  }
  // The kernel overwrote the sizes of those it filled.
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
  packets_.reserve(kTrains * kUsualSegments);
}

UdpReceiver::~UdpReceiver() = default;

std::span<const wire::RxPacket> UdpReceiver::receive() {
  packets_.clear();
  if (attentive_ > 0) --attentive_;
  if (attentive_ > 0 || ++calls_ % kDirectoryEvery == 0) poll_directory();
  if (UdpEndpoint* const endpoint = ready_endpoint()) read(*endpoint);
  hand_out_strays();
  return packets_;
}

// The endpoint to read from next. One alone is simply tried; of several, epoll rotates those that
// have something, so that none starves.
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
  const bool alone = endpoint.lone.alone();
  const size_t asked = alone ? 1 : trains_asked_;
  const size_t n = alone ? messages_->read_datagram(fd) : messages_->read(fd, asked);
  if (n < asked && endpoint.steering) endpoint.steering->on_drained();
  // Asking for more than there is costs a futile look into the socket each time: that is what a
  // message that comes alone would wait for.
  trains_asked_ = n == asked ? std::min(2 * n, kTrains) : std::max({n, asked / 2, size_t{1}});
  const uint64_t before = counters_.packets_received;
  for (size_t i = 0; i < n; ++i) {
    if (!try_allocating([&] { take_train(endpoint, i); })) ++counters_.out_of_memory;
    messages_->reset(i);
  }
  // Of several endpoints none is looked at in vain, which is where it would gain.
  if (endpoints_.size() == 1 || endpoint.lone.begun()) {
    follow(endpoint.lone.after_read(n, counters_.packets_received - before), fd);
  }
}

void UdpReceiver::take_train(UdpEndpoint& endpoint, size_t message) {
  mmsghdr& header = messages_->headers[message];
  const sockaddr_storage& sender = messages_->senders[message];
  const Ancillary a = parse_control(header.msg_hdr);
  const std::span<std::byte> batch(static_cast<std::byte*>(header.msg_hdr.msg_iov->iov_base),
                                   header.msg_len);

  ++counters_.trains_received;

  wire::RxMeta& meta = messages_->metas[message];
  meta.source = host::SocketAddress::gid_of(sender);
  meta.destination = endpoint.address.gid;
  meta.traffic_class = a.traffic_class;
  meta.hop_limit = a.hop_limit;
  meta.own = endpoint.is_group && sent_by_us(meta.source, host::SocketAddress::port_of(sender));
  const size_t stride = a.stride != 0 ? a.stride : batch.size();
  if (endpoint.steering && endpoint.steering->take_probe(batch, meta.source)) return;
  cut(endpoint, batch, stride, host::SocketAddress::port_of(sender), meta);
}

// The kernel steered the batch by its first packet, so every packet's slot is looked at. Strays
// that lie next to each other travel together.
void UdpReceiver::cut(UdpEndpoint& endpoint, std::span<std::byte> batch, size_t stride,
                      uint16_t source_port, const wire::RxMeta& meta) {
  const wire::IcrcFlow flow{meta.source, meta.destination, source_port, wire::kRoceUdpPort};
  if (verifier_.flow() != flow) verifier_ = wire::IcrcVerifier(flow);
  uint8_t stray_slot = 0;
  size_t stray_begin = 0;
  size_t stray_end = 0;
  const auto forward_strays = [&] {
    if (stray_end == stray_begin) return;
    forward(endpoint, stray_slot, batch.subspan(stray_begin, stray_end - stray_begin), stride,
            meta);
    stray_begin = stray_end = 0;
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
    if (slot != stray_slot || at != stray_end) {
      forward_strays();
      stray_slot = slot;
      stray_begin = at;
    }
    stray_end = at + datagram.size();
  }
  forward_strays();
}

void UdpReceiver::forward(UdpEndpoint& endpoint, uint8_t slot, std::span<const std::byte> bytes,
                          size_t stride, const wire::RxMeta& meta) {
  const os::NoCancel no_cancel;
  const uint64_t packets = (bytes.size() + stride - 1) / stride;
  if (directory_.forward(slot, endpoint.address, meta, bytes, static_cast<uint32_t>(stride)) ==
      host::Forwarded::Yes) {
    counters_.strays_forwarded += packets;
    // Only a stray with an owner shows that the kernel could have known better.
    if (endpoint.steering) endpoint.steering->on_misrouted(read_clock(options_));
  } else {
    counters_.strays_dropped += packets;
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

// What is lost for lack of memory is forwarded, or reported, again.
void UdpReceiver::poll_directory() {
  if (try_allocating([&] { read_directory(); })) return;
  ++counters_.out_of_memory;
  reports_.clear();
}

void UdpReceiver::read_directory() {
  const os::NoCancel no_cancel;
  directory_.poll(&mailbox_);
  mailbox_.take(strays_arrived_, reports_);
  if (!strays_arrived_.empty()) attentive_ = kAttentiveCalls;
  for (const auto& endpoint : endpoints_) {
    if (!endpoint->steering) continue;
    for (const host::MemberReport& report : reports_) endpoint->steering->on_report(report);
    endpoint->steering->tick(read_clock(options_));
  }
  reports_.clear();
}

// A stray that is not ours either is dropped, never passed on: two processes must not play ball.
// Nor may the owner do so with management datagrams, which are anybody's: they are marked.
void UdpReceiver::hand_out_strays() {
  if (strays_arrived_.empty() && strays_held_.empty()) return;
  strays_held_.clear();
  std::swap(strays_held_, strays_arrived_);
  for (host::MisroutedPackets& stray : strays_held_) {
    const std::span<const std::byte> bytes = stray.bytes;
    for (size_t at = 0; at < bytes.size(); at += stray.stride) {
      const auto datagram = bytes.subspan(at, std::min<size_t>(stray.stride, bytes.size() - at));
      if (datagram.size() < kSmallestDatagram ||
          !may_be_forwarded(wire::Qpn(load_be24(datagram.data() + kSlotOffset)))) {
        ++counters_.strays_dropped;
        continue;
      }
      ++counters_.strays_received;
      if (!try_allocating([&] { accept(datagram, stray.meta); })) ++counters_.out_of_memory;
    }
  }
}

}  // namespace verbena::datapath
