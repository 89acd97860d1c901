// Building trains, and sending them with as few system calls as possible.
#include "datapath/udp/udp_sender.h"

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "datapath/no_cancel.h"
#include "datapath/udp/clock.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

namespace verbena::datapath {
namespace {

// A turn's worth: enough for eight full trains, small enough to stay in a second-level cache.
constexpr size_t kBufferBytes = 512 * 1024;
constexpr size_t kMaxPackets = 256;
// Headers, the largest path MTU, padding and ICRC, rounded up.
constexpr size_t kLargestPacket = 4224;
// The kernel's limits for one segmented send; the second leaves room for the headers.
constexpr uint32_t kMaxSegments = 64;
constexpr size_t kMaxTrainBytes = 65000;
// Below this a second call of the CRC costs more than a second pass over the bytes.
constexpr size_t kSmallPacket = 512;
// How long a flush waits, once, for a full socket to drain into the network.
constexpr int kFullSocketPatienceMs = 1;
constexpr Duration kWarningPause = seconds(1);
// Each train in lent memory begins at a page. Many of smaller packets would take more of it than
// what PeerWindow lets out at once.
constexpr size_t kLeastLentPacket = 1024;
// Peer processes with lent memory; to further ones everything is copied.
constexpr size_t kMostLent = 16;

constexpr size_t kControlBytes =
    CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(int));

std::string print(const wire::Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  const bool v4 = gid.is_ipv4();
  ::inet_ntop(v4 ? AF_INET : AF_INET6, gid.bytes.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

template <typename T>
size_t put_control(std::byte* to, int level, int type, T value) {
  cmsghdr header{};
  header.cmsg_len = CMSG_LEN(sizeof value);
  header.cmsg_level = level;
  header.cmsg_type = type;
  std::memcpy(to, &header, sizeof header);
  std::memcpy(to + CMSG_LEN(0), &value, sizeof value);
  return CMSG_SPACE(sizeof value);
}

}  // namespace

struct UdpSender::Messages {
  std::array<mmsghdr, kMaxPackets> headers{};
  std::array<iovec, kMaxPackets> parts{};
  alignas(cmsghdr) std::array<std::array<std::byte, kControlBytes>, kMaxPackets> controls{};

  // How many were sent, or -1.
  long send(int fd, size_t first, size_t count) {
    constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
    if (count > 1) return ::syscall(SYS_sendmmsg, fd, &headers[first], count, kFlags);
    return ::syscall(SYS_sendmsg, fd, &headers[first].msg_hdr, kFlags) < 0 ? -1 : 1;
  }

  void set(size_t i, const Train& train) {
    const UdpPath& path = *train.path;
    parts[i] = {train.begin, train.bytes};
    std::byte* const control = controls[i].data();
    size_t n = 0;
    const bool v4 = path.icrc.flow().source.is_ipv4();
    if (train.segments > 1) {
      n += put_control(control, IPPROTO_UDP, UDP_SEGMENT, static_cast<uint16_t>(train.stride));
    }
    if (path.traffic_class != path.endpoint->traffic_class) {
      n += put_control<int>(control + n, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS,
                            path.traffic_class);
    }
    if (path.hop_limit != path.endpoint->hop_limit) {
      n += put_control<int>(control + n, v4 ? IPPROTO_IP : IPPROTO_IPV6,
                            v4 ? IP_TTL : IPV6_HOPLIMIT, path.hop_limit);
    }
    msghdr& m = headers[i].msg_hdr;
    m.msg_name = const_cast<sockaddr_storage*>(&path.to.storage);
    m.msg_namelen = path.to.bytes;
    m.msg_iov = &parts[i];
    m.msg_iovlen = 1;
    m.msg_control = n != 0 ? control : nullptr;
    m.msg_controllen = n;
  }
};

UdpSender::UdpSender(const std::vector<std::unique_ptr<UdpPath>>& paths, UdpCounters& counters,
                     const UdpOptions& options)
    : paths_(paths),
      counters_(counters),
      options_(options),
      buffer_(std::make_unique<std::byte[]>(kBufferBytes)),
      messages_(std::make_unique<Messages>()) {
  trains_.reserve(kMaxPackets);
}

UdpSender::~UdpSender() = default;

size_t UdpSender::room() const {
  return std::min(kMaxPackets - packets_, (kBufferBytes - used_) / kLargestPacket);
}

void UdpSender::push(const wire::TxPacket& packet) {
  size_t payload_bytes = 0;
  for (const auto& part : packet.payload) payload_bytes += part.size();
  const size_t covered = packet.header_bytes + payload_bytes + packet.pad;
  const size_t bytes = covered + wire::kIcrcBytes;
  UdpPath* const path = find(packet.path);
  if (path == nullptr || bytes > kLargestPacket || room() == 0) {
    ++counters_.send_drops;
    return;
  }
  const Train& train = train_for(*path, packet, bytes);
  uint32_t crc = path->icrc.of(bytes);
  if (path->icrc.flow().source.is_ipv4()) crc = wire::icrc_prefix_with_id(crc, train.segments - 1);

  std::byte* const out = train.begin + train.bytes - bytes;
  std::byte* to = out + packet.header_bytes;
  std::memcpy(out, packet.header.data(), packet.header_bytes);
  std::memset(out + covered - packet.pad, 0, packet.pad);
  if (bytes <= kSmallPacket) {
    for (const auto& part : packet.payload) {
      if (!part.empty()) std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
    crc = wire::icrc_over_bth(crc, {out, covered});
  } else {
    crc = wire::icrc_over_bth(crc, {out, packet.header_bytes});
    for (const auto& part : packet.payload) {
      crc = train.lent ? crc32_copy_past_caches(crc, to, part) : crc32_copy(crc, to, part);
      to += part.size();
    }
    crc = crc32(crc, {to, packet.pad});
  }
  wire::store_icrc(out + covered, crc);
  used_ += bytes;
  ++packets_;
}

// The train that a packet joins; it is counted in. Its place in the train is its IP id.
UdpSender::Train& UdpSender::train_for(UdpPath& path, const wire::TxPacket& packet,
                                       size_t packet_bytes) {
  const uint8_t slot = load_u8(packet.header.data() + 5);
  if (!trains_.empty()) {
    Train& last = trains_.back();
    if (last.path == &path && last.slot == slot && !last.closed && packet_bytes <= last.stride &&
        (packet.in_window || !last.lent) && last.segments < kMaxSegments &&
        last.bytes + packet_bytes <= kMaxTrainBytes && path.may_segment &&
        path.endpoint->kernel_segments) {
      last.closed = packet_bytes < last.stride;
      last.bytes += packet_bytes;
      ++last.segments;
      if (last.lent) path.lent->used(packet_bytes);
      return last;
    }
  }
  const bool lend = path.in_bulk && packet_bytes >= kLeastLentPacket && packet.in_window;
  LentMemory* const lent = lend ? lent_memory(path, slot) : nullptr;
  trains_.push_back({.path = &path,
                     .begin = lent != nullptr ? lent->place(kMaxTrainBytes) : buffer_.get() + used_,
                     .bytes = packet_bytes,
                     .stride = static_cast<uint32_t>(packet_bytes),
                     .segments = 1,
                     .slot = slot,
                     .closed = false,
                     .lent = lent != nullptr});
  if (lent != nullptr) lent->used(packet_bytes);
  return trains_.back();
}

LentMemory* UdpSender::lent_memory(UdpPath& path, uint8_t slot) {
  if (!lender_.works()) return nullptr;
  if (path.lent) return path.lent.get();
  std::erase_if(lent_, [](const Lent& l) { return l.memory.expired(); });
  const wire::Gid& to = path.destination.gid;
  const auto same = std::ranges::find_if(
      lent_, [&](const Lent& l) { return l.destination == to && l.slot == slot; });
  if (same != lent_.end()) {
    path.lent = same->memory.lock();
  } else if (lent_.size() < kMostLent) {
    auto memory = std::make_shared<LentMemory>();
    if (!memory->valid()) return nullptr;
    lent_.push_back({to, slot, memory});
    path.lent = std::move(memory);
  }
  return path.lent.get();
}

void UdpSender::flush() {
  waited_ = false;
  tried_again_ = false;
  for (size_t first = 0; first < trains_.size();) {
    size_t end = first + 1;
    while (end < trains_.size() && trains_[end].path->endpoint == trains_[first].path->endpoint) {
      ++end;
    }
    send_trains(first, end);
    first = end;
  }
  for (const Train& train : trains_) train.path->in_bulk = false;
  for (const Train& train : trains_) train.path->in_bulk |= train.bytes >= PageLender::kLeastBytes;
  trains_.clear();
  used_ = 0;
  packets_ = 0;
}

// All of them leave through one endpoint's socket, in order.
void UdpSender::send_trains(size_t first, size_t end) {
  size_t to_copy = first;
  for (size_t i = first; i < end; ++i) {
    const Train& train = trains_[i];
    if (!train.lent || train.bytes < PageLender::kLeastBytes || !lender_.works() ||
        train.stride > train.path->max_datagram_bytes) {
      continue;
    }
    send_copies(to_copy, i);
    to_copy = send_lent(train) ? i + 1 : i;
  }
  send_copies(to_copy, end);
}

bool UdpSender::send_lent(const Train& train) {
  messages_->set(0, train);
  if (!lender_.send(train.path->endpoint->send.fd.get(), messages_->headers[0].msg_hdr,
                    {train.begin, train.bytes})) {
    return false;
  }
  ++counters_.trains_lent;
  count(train);
  return true;
}

void UdpSender::send_copies(size_t first, size_t end) {
  if (first == end) return;
  for (size_t i = first; i < end; ++i) messages_->set(i - first, trains_[i]);
  const int fd = trains_[first].path->endpoint->send.fd.get();
  for (size_t next = first; next < end;) {
    const long sent = messages_->send(fd, next - first, end - next);
    if (sent <= 0) {
      if (!on_send_error(trains_[next], errno)) ++next;
      continue;
    }
    for (const size_t done = next + static_cast<size_t>(sent); next < done; ++next) {
      count(trains_[next]);
    }
  }
}

void UdpSender::count(const Train& train) {
  counters_.packets_sent += train.segments;
  counters_.bytes_sent += train.bytes;
  ++counters_.trains_sent;
}

bool UdpSender::on_send_error(const Train& train, int error) {
  const NoCancel no_cancel;
  UdpPath& path = *train.path;
  if (path.endpoint->hears_absences && !std::exchange(tried_again_, true)) return true;
  switch (error) {
    case EINTR:
      return true;
    case EAGAIN:
    case ENOBUFS:
      if (!waited_) {
        waited_ = true;
        pollfd p{.fd = path.endpoint->send.fd.get(), .events = POLLOUT, .revents = 0};
        ::poll(&p, 1, kFullSocketPatienceMs);
        return true;
      }
      counters_.send_drops += train.segments;
      return false;
    case EINVAL:
    case EIO:
      // Older kernels say EINVAL where newer ones say EMSGSIZE.
      if (train.stride > path.max_datagram_bytes) break;
      if (train.segments > 1) path.endpoint->kernel_segments = false;
      counters_.send_drops += train.segments;
      return false;
    case EMSGSIZE:
      break;
    default:
      counters_.send_drops += train.segments;
      warn("cannot send to " + print(path.icrc.flow().destination) + ": " + std::strerror(error));
      return false;
  }
  counters_.path_mtu_exceeded += train.segments;
  if (auto largest =
          largest_datagram(path.endpoint->address, path.destination, path.interface_index);
      largest.ok()) {
    path.max_datagram_bytes = largest.value();
  }
  warn("the path to " + print(path.icrc.flow().destination) + " carries only " +
       std::to_string(path.max_datagram_bytes) + " bytes of UDP, a packet has " +
       std::to_string(train.stride) + "; use a smaller path MTU or raise the interface's MTU");
  return false;
}

std::optional<std::string> UdpSender::take_warning() {
  return std::exchange(warning_, std::nullopt);
}

void UdpSender::warn(std::string text) {
  const Instant at = read_clock(options_);
  if (warned_at_ && at - *warned_at_ < kWarningPause) return;
  warned_at_ = at;
  warning_ = std::move(text);
}

UdpPath* UdpSender::find(wire::PathId id) const {
  const auto i = static_cast<size_t>(id);
  return i < paths_.size() ? paths_[i].get() : nullptr;
}

}  // namespace verbena::datapath
