// Builds batches and sends them with as few system calls as possible.
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

#include "base/exhaustion.h"
#include "datapath/udp/clock.h"
#include "os/control_message.h"
#include "os/no_cancel.h"
#include "os/socket_options.h"

namespace verbena::datapath {
namespace {

// The limit per turn: enough for eight full batches, and fits into an L2 cache.
constexpr size_t kBufferBytes = size_t{512} * 1024;
constexpr size_t kMaxPackets = 256;
// The kernel's limits for one GSO batch; the second one allows for the headers.
constexpr uint32_t kMaxSegments = 64;
constexpr size_t kMaxBatchBytes = 65000;
// How long a flush waits, once, for free space in a full socket.
constexpr int kFullSocketWaitMs = 1;
constexpr Duration kWarningPause = seconds(1);
// A zero-copy batch begins at a page boundary, so batches of small packets would use up more of the
// ring than the congestion window.
constexpr size_t kMinZeroCopyPacket = 1024;
// Lanes of peers with a ZeroCopyRing; batches to further ones are copied.
constexpr size_t kMaxZeroCopyPeers = 16;
// Limit for the search for a batch that a packet may join.
constexpr size_t kBatchesTried = 8;
// After so many batches in a row with one segment size, each in a system call of its own, that size
// becomes the socket's default.
constexpr uint32_t kEqualBatches = 32;
// Flushes after one with several paths that are expected to have several paths too.
constexpr uint32_t kGatheringFlushes = 16;

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int));

std::string print(const wire::Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  const bool v4 = gid.is_ipv4();
  ::inet_ntop(v4 ? AF_INET : AF_INET6, gid.bytes.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

// The slot of the peer's lane: the top byte of the packet's QPN.
uint8_t slot_of(const wire::TxPacket& packet) { return load_u8(packet.header.data() + 5); }

}  // namespace

struct UdpSender::Messages {
  std::array<mmsghdr, kMaxPackets> headers{};
  std::array<iovec, kMaxPackets> parts{};
  alignas(cmsghdr) std::array<std::array<std::byte, kControlBytes>, kMaxPackets> controls{};

  // The UDP_SEGMENT value of the batch; 0: a single packet.
  static uint16_t segment_size_of(const GsoBatch& batch) {
    return batch.segments > 1 ? static_cast<uint16_t>(batch.stride) : uint16_t{0};
  }
  // Whether the socket's default has the same effect.
  static bool is_socket_default(const GsoBatch& batch) {
    const size_t segment_bytes = batch.path->endpoint->send.segment_bytes;
    return batch.segments > 1 ? segment_bytes == batch.stride
                              : segment_bytes == 0 || batch.bytes <= segment_bytes;
  }

  // Returns the number of batches sent, or -1.
  long send(int fd, size_t first, size_t count) {
    constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
    if (count > 1) return ::syscall(SYS_sendmmsg, fd, headers.data() + first, count, kFlags);
    const msghdr& m = headers[first].msg_hdr;
    const bool plain = m.msg_iovlen == 1 && m.msg_control == nullptr;  // sendto is faster
    const long sent = plain ? ::syscall(SYS_sendto, fd, m.msg_iov->iov_base, m.msg_iov->iov_len,
                                        kFlags, m.msg_name, m.msg_namelen)
                            : ::syscall(SYS_sendmsg, fd, &m, kFlags);
    return sent < 0 ? -1 : 1;
  }

  // Returns the index of the first unused part.
  size_t set(size_t i, const GsoBatch& batch, const std::vector<Area>& areas, size_t part) {
    const UdpPath& path = *batch.path;
    msghdr& m = headers[i].msg_hdr;
    const size_t first_part = part;
    m.msg_iov = parts.data() + first_part;
    for (uint32_t p = batch.first_area; p != batch.last_area; p = areas[p].next) {
      parts[part++] = {areas[p].begin, areas[p].bytes};
    }
    std::byte* const last = areas[batch.last_area].begin;
    parts[part++] = {last, static_cast<size_t>(batch.end - last)};
    m.msg_iovlen = part - first_part;
    std::byte* const control = controls[i].data();
    size_t n = 0;
    const bool v4 = path.icrc.flow().source.is_ipv4();
    if (!is_socket_default(batch))
      n += os::put_control(control, IPPROTO_UDP, UDP_SEGMENT, segment_size_of(batch));
    if (path.hop_limit != path.endpoint->hop_limit) {
      n += os::put_control<int>(control + n, v4 ? IPPROTO_IP : IPPROTO_IPV6,
                                v4 ? IP_TTL : IPV6_HOPLIMIT, path.hop_limit);
    }
    m.msg_name = const_cast<sockaddr_storage*>(&path.to.storage);
    m.msg_namelen = path.to.bytes;
    m.msg_control = n != 0 ? control : nullptr;
    m.msg_controllen = n;
    return part;
  }
};

UdpSender::UdpSender(const std::vector<std::unique_ptr<UdpPath>>& paths, UdpCounters& counters,
                     const UdpOptions& options)
    : paths_(paths),
      counters_(counters),
      options_(options),
      buffer_(std::make_unique<std::byte[]>(kBufferBytes)),
      buffer_end_(buffer_.get()),
      messages_(std::make_unique<Messages>()) {
  batches_.reserve(kMaxPackets);
  areas_.reserve(kMaxPackets);
}

UdpSender::~UdpSender() = default;

size_t UdpSender::room() const {
  return std::min(kMaxPackets - packets_, (kBufferBytes - used_) / kLargestPacket);
}

// Returns the batch of the packet, with the packet included. Its index in the batch is its IP ID.
UdpSender::GsoBatch& UdpSender::batch_for(UdpPath& path, const wire::TxPacket& packet,
                                          size_t packet_bytes) {
  size_t first = open_from_;
  if (path.flush_number == flush_number_) {
    GsoBatch& own = batches_[path.latest_batch];
    if (own.latest == &path && own.stride == packet_bytes && own.free_segments > 0 &&
        own.slot == slot_of(packet) && may_grow(own, packet) &&
        packet.ecn_capable) {  // the usual case
      own.gathered |= path.latest_batch + 1 != batches_.size();
      own.bytes += packet_bytes;
      ++own.segments;
      --own.free_segments;
      own.end += packet_bytes;
      if (own.zero_copy != nullptr) {
        own.zero_copy->use(packet_bytes);
      } else {
        buffer_end_ += packet_bytes;
      }
      return own;
    }
    first = std::max(first, path.latest_batch);
  } else {
    path.flush_number = flush_number_;
    several_paths_ |= !batches_.empty();
  }
  const size_t end = std::min(batches_.size(), first + kBatchesTried);
  for (size_t i = first; i < end && packet.ecn_capable; ++i) {
    if (may_join(batches_[i], path, packet, packet_bytes)) return join(i, path, packet_bytes);
  }
  return begin_batch(path, packet, packet_bytes);
}

// Nothing is behind the batch in its memory.
bool UdpSender::may_grow(const GsoBatch& batch, const wire::TxPacket& packet) const {
  if (batch.zero_copy == nullptr) return batch.end == buffer_end_;
  return packet.in_window && batch.end == batch.zero_copy->end();
}

// A shorter packet ends a batch. That saves a batch if one queue pair is active. It costs one if
// packets of other queue pairs could have joined, unless the engine has set ends_batch.
bool UdpSender::may_join(const GsoBatch& batch, const UdpPath& path, const wire::TxPacket& packet,
                         size_t packet_bytes) const {
  const bool ends = packet_bytes < batch.stride && batch.latest == &path &&
                    (gathering_ == 0 || packet.ends_batch) && !batch.closed &&
                    batch.segments < kMaxSegments && batch.bytes + packet_bytes <= kMaxBatchBytes;
  const bool fits = ends || (packet_bytes == batch.stride && batch.free_segments > 0);
  return fits && batch.slot == slot_of(packet) && batch.path->may_share_batch(path) &&
         (batch.zero_copy == nullptr || may_grow(batch, packet));
}

UdpSender::GsoBatch& UdpSender::join(size_t i, UdpPath& path, size_t packet_bytes) {
  GsoBatch& batch = batches_[i];
  batch.closed = packet_bytes < batch.stride;
  batch.free_segments = batch.closed ? 0 : batch.free_segments - 1;
  batch.gathered |= i + 1 != batches_.size();
  batch.bytes += packet_bytes;
  ++batch.segments;
  if (batch.zero_copy != nullptr) {
    batch.zero_copy->use(packet_bytes);
    batch.end += packet_bytes;
  } else {
    if (batch.end != buffer_end_) {
      const uint32_t area = begin_area(buffer_end_);
      Area& last = areas_[batch.last_area];
      last.bytes = static_cast<size_t>(batch.end - last.begin);
      batch.last_area = last.next = area;
    }
    batch.end = buffer_end_ += packet_bytes;
  }
  batch.latest = &path;
  path.latest_batch = i;
  return batch;
}

UdpSender::GsoBatch& UdpSender::begin_batch(UdpPath& path, const wire::TxPacket& packet,
                                            size_t packet_bytes) {
  while (open_from_ < batches_.size() && batches_[open_from_].free_segments == 0) ++open_from_;
  // A packet without ECN bits has a batch of its own, since a batch has one IP header.
  const bool segments = path.may_segment && path.endpoint->kernel_segments && packet.ecn_capable;
  const size_t max_segments =
      segments ? std::min<size_t>(kMaxSegments, kMaxBatchBytes / packet_bytes) : 1;
  const uint8_t slot = slot_of(packet);
  const bool use_zero_copy = packet.in_window && packet_bytes >= kMinZeroCopyPacket &&
                             last_long_stride(slot, packet_bytes) == packet_bytes;
  ZeroCopyRing* const zero_copy = use_zero_copy ? zero_copy_ring(path, slot) : nullptr;
  std::byte* const at = zero_copy != nullptr ? zero_copy->begin_batch(kMaxBatchBytes) : buffer_end_;
  if (zero_copy != nullptr) {
    zero_copy->use(packet_bytes);
  } else {
    buffer_end_ += packet_bytes;
  }
  const uint32_t area = begin_area(at);
  path.latest_batch = batches_.size();
  batches_.push_back(
      {.path = &path,
       .latest = &path,
       .end = at + packet_bytes,
       .bytes = packet_bytes,
       .stride = static_cast<uint32_t>(packet_bytes),
       .segments = 1,
       .free_segments = static_cast<uint32_t>(max_segments - 1),
       .first_area = area,
       .last_area = area,
       .slot = slot,
       .traffic_class = packet.ecn_capable ? path.traffic_class : wire::dscp_of(path.traffic_class),
       .closed = !segments,
       .gathered = false,
       .zero_copy = zero_copy});
  return batches_.back();
}

uint32_t UdpSender::begin_area(std::byte* at) {
  areas_.push_back({at, 0, 0});
  return static_cast<uint32_t>(areas_.size() - 1);
}

ZeroCopyRing* UdpSender::zero_copy_ring(UdpPath& path, uint8_t slot) {
  // On longer paths more may be in flight than the ring holds.
  if (!path.is_local || !zero_copy_sender_.works()) return nullptr;
  if (path.zero_copy) return path.zero_copy.get();
  std::erase_if(zero_copy_peers_, [](const ZeroCopyPeer& peer) { return peer.ring.expired(); });
  const wire::Gid& from = path.icrc.flow().source;
  const wire::Gid& to = path.destination.gid;
  const auto known = std::ranges::find_if(zero_copy_peers_, [&](const ZeroCopyPeer& peer) {
    return peer.source == from && peer.destination == to && peer.slot == slot;
  });
  if (known != zero_copy_peers_.end()) {
    path.zero_copy = known->ring.lock();
  } else if (zero_copy_peers_.size() < kMaxZeroCopyPeers) {
    (void)try_allocating([&] {  // otherwise batches are copied
      auto ring = std::make_shared<ZeroCopyRing>();
      if (!ring->valid()) return;
      zero_copy_peers_.push_back({from, to, slot, ring});
      path.zero_copy = std::move(ring);
    });
  }
  return path.zero_copy.get();
}

void UdpSender::flush() {
  if (batches_.empty()) return;
  waited_ = false;
  retried_ = nullptr;
  for (size_t first = 0; first < batches_.size();) {
    size_t end = first + 1;
    while (end < batches_.size() &&
           batches_[end].path->endpoint == batches_[first].path->endpoint &&
           batches_[end].traffic_class == batches_[first].traffic_class) {
      ++end;
    }
    use_traffic_class(*batches_[first].path->endpoint, batches_[first].traffic_class);
    send_batches(first, end);
    first = end;
  }
  predict();
  batches_.clear();
  areas_.clear();
  open_from_ = 0;
  used_ = 0;
  buffer_end_ = buffer_.get();
  packets_ = 0;
  several_paths_ = false;
  ++flush_number_;
}

// Predicts the batches of the next flush. With one queue pair, all batches are zero-copy if one of
// them was long. With several, a zero-copy batch can grow only while it is the last one in the
// ring.
void UdpSender::predict() {
  if (several_paths_) {
    gathering_ = kGatheringFlushes;
  } else if (gathering_ > 0) {
    --gathering_;
  }
  bool any_long = false;
  for (const GsoBatch& batch : batches_) {
    any_long |= batch.bytes >= ZeroCopySender::kMinBytes;
    last_long_stride(batch) = 0;
  }
  if (!any_long) return;
  for (const GsoBatch& batch : batches_) {
    const bool is_long = batch.bytes >= ZeroCopySender::kMinBytes && !batch.gathered;
    if (is_long || !several_paths_) last_long_stride(batch) = batch.stride;
  }
}

// Most queue pairs of a process have the same traffic class, which then stays set. A control
// message with the traffic class of each batch would not set its priority.
void UdpSender::use_traffic_class(UdpEndpoint& endpoint, uint8_t traffic_class) {
  if (endpoint.traffic_class == traffic_class) [[likely]]
    return;
  set_traffic_class(endpoint.send.fd.get(), endpoint.address, traffic_class);
  endpoint.traffic_class = traffic_class;
}

// All these batches have the same endpoint and traffic class. They are sent in order.
void UdpSender::send_batches(size_t first, size_t end) {
  size_t to_copy = first;
  for (size_t i = first; i < end; ++i) {
    const GsoBatch& batch = batches_[i];
    if (batch.zero_copy == nullptr || batch.bytes < ZeroCopySender::kMinBytes ||
        !zero_copy_sender_.works() || batch.stride > batch.path->max_datagram_bytes) {
      continue;
    }
    send_copies(to_copy, i);
    to_copy = send_zero_copy(batch) ? i + 1 : i;
  }
  send_copies(to_copy, end);
}

bool UdpSender::send_zero_copy(const GsoBatch& batch) {
  messages_->set(0, batch, areas_, 0);
  if (!zero_copy_sender_.send(batch.path->endpoint->send.fd.get(), messages_->headers[0].msg_hdr,
                              {areas_[batch.first_area].begin, batch.bytes})) {
    return false;
  }
  ++counters_.batches_zero_copy;
  count(batch);
  return true;
}

void UdpSender::send_copies(size_t first, size_t end) {
  if (first == end) return;
  if (end - first == 1) choose_socket_segment_size(batches_[first]);
  const auto prepare = [&](size_t from) {
    size_t part = 0;
    for (size_t i = from; i < end; ++i) part = messages_->set(i - first, batches_[i], areas_, part);
  };
  prepare(first);
  const int fd = batches_[first].path->endpoint->send.fd.get();
  for (size_t next = first; next < end;) {
    const long sent = messages_->send(fd, next - first, end - next);
    if (sent <= 0) {
      if (!on_send_error(batches_[next], errno)) ++next;
      prepare(next);
      continue;
    }
    for (const size_t done = next + static_cast<size_t>(sent); next < done; ++next) {
      count(batches_[next]);
    }
  }
}

// A batch with the socket's default segment size needs no control message.
void UdpSender::choose_socket_segment_size(const GsoBatch& batch) {
  if (Messages::is_socket_default(batch)) {
    if (batch.segments > 1) equal_batches_ = 0;
    return;
  }
  const uint16_t wanted = Messages::segment_size_of(batch);
  equal_batches_ = wanted == wanted_segment_bytes_ ? equal_batches_ + 1 : 1;
  wanted_segment_bytes_ = wanted;
  UdpEndpoint& endpoint = *batch.path->endpoint;
  if (equal_batches_ < kEqualBatches || !endpoint.may_set_segment_size) return;
  equal_batches_ = 0;
  set_segment_size(endpoint.send, wanted);
}

void UdpSender::count(const GsoBatch& batch) {
  counters_.packets_sent += batch.segments;
  counters_.bytes_sent += batch.bytes;
  ++counters_.batches_sent;
}

void UdpSender::warn(auto describe) {
  const Instant at = read_clock(options_);
  if (warned_at_ && at - *warned_at_ < kWarningPause) return;
  warned_at_ = at;
  (void)try_allocating([&] { warning_ = describe(); });
}

bool UdpSender::on_send_error(const GsoBatch& batch, int error) {
  const os::NoCancel no_cancel;
  UdpPath& path = *batch.path;
  if (path.endpoint->reports_unreachable_hosts && std::exchange(retried_, &batch) != &batch)
    return true;
  switch (error) {
    case EINTR:
      return true;
    case EAGAIN:
    case ENOBUFS:
      if (!waited_) {
        waited_ = true;
        pollfd p{.fd = path.endpoint->send.fd.get(), .events = POLLOUT, .revents = 0};
        ::poll(&p, 1, kFullSocketWaitMs);
        return true;
      }
      counters_.send_drops += batch.segments;
      return false;
    case EINVAL:
    case EIO:
      // Older kernels return EINVAL instead of EMSGSIZE.
      if (batch.stride > path.max_datagram_bytes) break;
      if (path.endpoint->send.segment_bytes != 0) {  // some kernels reject single packets then
        path.endpoint->may_set_segment_size = false;
        set_segment_size(path.endpoint->send, 0);
        return path.endpoint->send.segment_bytes == 0;
      }
      if (batch.segments > 1) path.endpoint->kernel_segments = false;
      counters_.send_drops += batch.segments;
      return false;
    case EMSGSIZE:
      break;
    default:
      counters_.send_drops += batch.segments;
      warn([&] {
        return "cannot send to " + print(path.icrc.flow().destination) + ": " +
               std::strerror(error);
      });
      return false;
  }
  counters_.path_mtu_exceeded += batch.segments;
  if (auto largest =
          largest_datagram(path.endpoint->address, path.destination, path.interface_index);
      largest.ok()) {
    path.max_datagram_bytes = largest.value();
  }
  warn([&] {
    return "the path to " + print(path.icrc.flow().destination) + " takes only " +
           std::to_string(path.max_datagram_bytes) + " bytes of UDP, a packet has " +
           std::to_string(batch.stride) + "; use a smaller path MTU or raise the interface's MTU";
  });
  return false;
}

std::optional<std::string> UdpSender::take_warning() {
  return std::exchange(warning_, std::nullopt);
}

UdpPath* UdpSender::find(wire::PathId id) const {
  const auto i = static_cast<size_t>(id);
  return i < paths_.size() ? paths_[i].get() : nullptr;
}

}  // namespace verbena::datapath
