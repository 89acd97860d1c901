// Building batches, and sending them with as few system calls as possible.
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

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

namespace verbena::datapath {
namespace {

// A turn's worth: enough for eight full batches, small enough to stay in a second-level cache.
constexpr size_t kBufferBytes = size_t{512} * 1024;
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
// Each batch in lent memory begins at a page. Many of smaller packets would take more of it than
// what PeerPath lets out at once.
constexpr size_t kLeastLentPacket = 1024;
// Peer processes with lent memory; to further ones everything is copied.
constexpr size_t kMostLent = 16;
// Batches that a packet is tried with.
constexpr size_t kTrainsTried = 8;
// So many batches in a row of one size, each sent alone, and the socket is told it once for all.
constexpr uint32_t kTrainsAlike = 32;
// Batches after one with several paths that are taken to have several, too.
constexpr uint32_t kGatheringBatches = 16;

constexpr size_t kControlBytes =
    CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(int));

std::string print(const wire::Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  const bool v4 = gid.is_ipv4();
  ::inet_ntop(v4 ? AF_INET : AF_INET6, gid.bytes.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

// The peer process that the packet is for: the top byte of its QPN.
uint8_t slot_of(const wire::TxPacket& packet) { return load_u8(packet.header.data() + 5); }

}  // namespace

struct UdpSender::Messages {
  std::array<mmsghdr, kMaxPackets> headers{};
  std::array<iovec, kMaxPackets> parts{};
  alignas(cmsghdr) std::array<std::array<std::byte, kControlBytes>, kMaxPackets> controls{};

  // Into datagrams of what size it is to be cut; 0: not at all.
  static uint16_t cut_of(const GsoBatch& batch) {
    return batch.segments > 1 ? static_cast<uint16_t>(batch.stride) : uint16_t{0};
  }
  // Whether the socket does so by itself.
  static bool cut_anyway(const GsoBatch& batch) {
    const size_t packet_payload_bytes = batch.path->endpoint->send.packet_payload_bytes;
    return batch.segments > 1 ? packet_payload_bytes == batch.stride
                              : packet_payload_bytes == 0 || batch.bytes <= packet_payload_bytes;
  }

  // How many were sent, or -1.
  long send(int fd, size_t first, size_t count) {
    constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
    if (count > 1) return ::syscall(SYS_sendmmsg, fd, headers.data() + first, count, kFlags);
    const msghdr& m = headers[first].msg_hdr;
    const bool plain = m.msg_iovlen == 1 && m.msg_control == nullptr;  // there is a quicker call
    const long sent = plain ? ::syscall(SYS_sendto, fd, m.msg_iov->iov_base, m.msg_iov->iov_len,
                                        kFlags, m.msg_name, m.msg_namelen)
                            : ::syscall(SYS_sendmsg, fd, &m, kFlags);
    return sent < 0 ? -1 : 1;
  }

  // The first part that is free behind those of the message.
  size_t set(size_t i, const GsoBatch& batch, const std::vector<Piece>& pieces, size_t part) {
    const UdpPath& path = *batch.path;
    msghdr& m = headers[i].msg_hdr;
    const size_t first_part = part;
    m.msg_iov = parts.data() + first_part;
    for (uint32_t p = batch.first_piece; p != batch.last_piece; p = pieces[p].next) {
      parts[part++] = {pieces[p].begin, pieces[p].bytes};
    }
    std::byte* const last = pieces[batch.last_piece].begin;
    parts[part++] = {last, static_cast<size_t>(batch.end - last)};
    m.msg_iovlen = part - first_part;
    std::byte* const control = controls[i].data();
    size_t n = 0;
    const bool v4 = path.icrc.flow().source.is_ipv4();
    if (!cut_anyway(batch)) n += os::put_control(control, IPPROTO_UDP, UDP_SEGMENT, cut_of(batch));
    if (path.traffic_class != path.endpoint->traffic_class) {
      n += os::put_control<int>(control + n, v4 ? IPPROTO_IP : IPPROTO_IPV6,
                                v4 ? IP_TOS : IPV6_TCLASS, path.traffic_class);
    }
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
  pieces_.reserve(kMaxPackets);
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
  const GsoBatch& batch = batch_for(*path, packet, bytes);
  uint32_t crc = batch.path->icrc.of(bytes);
  if (path->icrc.flow().source.is_ipv4()) crc = wire::icrc_prefix_with_id(crc, batch.segments - 1);

  std::byte* const out = batch.end - bytes;
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
    // A few bytes take as long as hundreds: what is before the next cache line is summed up with
    // the header.
    const std::span<const std::byte> first = packet.payload.front();
    const size_t with_header =
        std::min(first.size(), -reinterpret_cast<uintptr_t>(to) % kCacheLine);
    if (with_header != 0) std::memcpy(to, first.data(), with_header);
    to += with_header;
    crc = wire::icrc_over_bth(crc, {out, to});
    const auto add = [&](std::span<const std::byte> part) {
      crc =
          batch.lent != nullptr ? crc32_copy_past_caches(crc, to, part) : crc32_copy(crc, to, part);
      to += part.size();
    };
    add(first.subspan(with_header));
    for (const auto& part : packet.payload.subspan(1)) add(part);
    crc = crc32(crc, {to, packet.pad});
  }
  wire::store_icrc(out + covered, crc);
  used_ += bytes;
  ++packets_;
}

// The batch that a packet joins; it is counted in. Its place in the batch is its IP id.
UdpSender::GsoBatch& UdpSender::batch_for(UdpPath& path, const wire::TxPacket& packet,
                                          size_t packet_bytes) {
  size_t first = open_from_;
  if (path.batch == batch_) {
    GsoBatch& own = batches_[path.latest_batch];
    if (own.latest == &path && own.stride == packet_bytes && own.room > 0 &&
        own.slot == slot_of(packet) && own.end == buffer_end_) {  // the usual case
      own.bytes += packet_bytes;
      ++own.segments;
      --own.room;
      own.end = buffer_end_ += packet_bytes;
      return own;
    }
    first = std::max(first, path.latest_batch);
  } else {
    path.batch = batch_;
    several_ |= !batches_.empty();
  }
  const size_t end = std::min(batches_.size(), first + kTrainsTried);
  for (size_t i = first; i < end; ++i) {
    if (takes(batches_[i], path, packet, packet_bytes)) return join(i, path, packet_bytes);
  }
  return begin_batch(path, packet, packet_bytes);
}

// A shorter packet ends a batch. That saves one where a queue pair is alone, and costs one where
// the packets of others would have made it longer, unless the engine says that none follow.
bool UdpSender::takes(const GsoBatch& batch, const UdpPath& path, const wire::TxPacket& packet,
                      size_t packet_bytes) const {
  const bool ends = packet_bytes < batch.stride && batch.latest == &path &&
                    (gathering_ == 0 || packet.ends_batch) && !batch.closed &&
                    batch.segments < kMaxSegments && batch.bytes + packet_bytes <= kMaxTrainBytes;
  const bool fits = ends || (packet_bytes == batch.stride && batch.room > 0);
  return fits && batch.slot == slot_of(packet) && batch.path->goes_with(path) &&
         (batch.lent == nullptr || (packet.in_window && batch.end == batch.lent->end()));
}

UdpSender::GsoBatch& UdpSender::join(size_t i, UdpPath& path, size_t packet_bytes) {
  GsoBatch& batch = batches_[i];
  batch.closed = packet_bytes < batch.stride;
  batch.room = batch.closed ? 0 : batch.room - 1;
  batch.gathered |= i + 1 != batches_.size();
  batch.bytes += packet_bytes;
  ++batch.segments;
  if (batch.lent != nullptr) {
    batch.lent->used(packet_bytes);
    batch.end += packet_bytes;
  } else {
    if (batch.end != buffer_end_) {
      const uint32_t piece = begin_piece(buffer_end_);
      Piece& last = pieces_[batch.last_piece];
      last.bytes = static_cast<size_t>(batch.end - last.begin);
      batch.last_piece = last.next = piece;
    }
    batch.end = buffer_end_ += packet_bytes;
  }
  batch.latest = &path;
  path.latest_batch = i;
  return batch;
}

UdpSender::GsoBatch& UdpSender::begin_batch(UdpPath& path, const wire::TxPacket& packet,
                                            size_t packet_bytes) {
  while (open_from_ < batches_.size() && batches_[open_from_].room == 0) ++open_from_;
  const bool segments = path.may_segment && path.endpoint->kernel_segments;
  const size_t most = segments ? std::min<size_t>(kMaxSegments, kMaxTrainBytes / packet_bytes) : 1;
  const uint8_t slot = slot_of(packet);
  const bool lend = packet.in_window && packet_bytes >= kLeastLentPacket &&
                    long_before(slot, packet_bytes) == packet_bytes;
  ZeroCopyRing* const lent = lend ? zero_copy_ring(path, slot) : nullptr;
  std::byte* const at = lent != nullptr ? lent->place(kMaxTrainBytes) : buffer_end_;
  if (lent != nullptr) {
    lent->used(packet_bytes);
  } else {
    buffer_end_ += packet_bytes;
  }
  const uint32_t piece = begin_piece(at);
  path.latest_batch = batches_.size();
  batches_.push_back({.path = &path,
                      .latest = &path,
                      .end = at + packet_bytes,
                      .bytes = packet_bytes,
                      .stride = static_cast<uint32_t>(packet_bytes),
                      .segments = 1,
                      .room = static_cast<uint32_t>(most - 1),
                      .first_piece = piece,
                      .last_piece = piece,
                      .slot = slot,
                      .closed = !segments,
                      .gathered = false,
                      .lent = lent});
  return batches_.back();
}

uint32_t UdpSender::begin_piece(std::byte* at) {
  pieces_.push_back({at, 0, 0});
  return static_cast<uint32_t>(pieces_.size() - 1);
}

ZeroCopyRing* UdpSender::zero_copy_ring(UdpPath& path, uint8_t slot) {
  if (!lender_.works()) return nullptr;
  if (path.lent) return path.lent.get();
  std::erase_if(lent_, [](const Lent& l) { return l.memory.expired(); });
  const wire::Gid& from = path.icrc.flow().source;
  const wire::Gid& to = path.destination.gid;
  const auto same = std::ranges::find_if(lent_, [&](const Lent& l) {
    return l.source == from && l.destination == to && l.slot == slot;
  });
  if (same != lent_.end()) {
    path.lent = same->memory.lock();
  } else if (lent_.size() < kMostLent) {
    (void)try_allocating([&] {  // otherwise everything is copied
      auto memory = std::make_shared<ZeroCopyRing>();
      if (!memory->valid()) return;
      lent_.push_back({from, to, slot, memory});
      path.lent = std::move(memory);
    });
  }
  return path.lent.get();
}

void UdpSender::flush() {
  if (batches_.empty()) return;
  waited_ = false;
  tried_again_ = nullptr;
  for (size_t first = 0; first < batches_.size();) {
    size_t end = first + 1;
    while (end < batches_.size() &&
           batches_[end].path->endpoint == batches_[first].path->endpoint) {
      ++end;
    }
    send_trains(first, end);
    first = end;
  }
  learn();
  batches_.clear();
  pieces_.clear();
  open_from_ = 0;
  used_ = 0;
  buffer_end_ = buffer_.get();
  packets_ = 0;
  several_ = false;
  ++batch_;
}

// What the batch says about the next one. Of one queue pair, all packets are lent when some were in
// a long batch. Among several, a batch can only grow in lent memory while nothing is behind it.
void UdpSender::learn() {
  if (several_) {
    gathering_ = kGatheringBatches;
  } else if (gathering_ > 0) {
    --gathering_;
  }
  bool any_long = false;
  for (const GsoBatch& batch : batches_) {
    any_long |= batch.bytes >= ZeroCopySender::kLeastBytes;
    long_before(batch) = 0;
  }
  if (!any_long) return;
  for (const GsoBatch& batch : batches_) {
    const bool is_long = batch.bytes >= ZeroCopySender::kLeastBytes && !batch.gathered;
    if (is_long || !several_) long_before(batch) = batch.stride;
  }
}

// All of them leave through one endpoint's socket, in order.
void UdpSender::send_trains(size_t first, size_t end) {
  size_t to_copy = first;
  for (size_t i = first; i < end; ++i) {
    const GsoBatch& batch = batches_[i];
    if (batch.lent == nullptr || batch.bytes < ZeroCopySender::kLeastBytes || !lender_.works() ||
        batch.stride > batch.path->max_datagram_bytes) {
      continue;
    }
    send_copies(to_copy, i);
    to_copy = send_lent(batch) ? i + 1 : i;
  }
  send_copies(to_copy, end);
}

bool UdpSender::send_lent(const GsoBatch& batch) {
  messages_->set(0, batch, pieces_, 0);
  if (!lender_.send(batch.path->endpoint->send.fd.get(), messages_->headers[0].msg_hdr,
                    {pieces_[batch.first_piece].begin, batch.bytes})) {
    return false;
  }
  ++counters_.trains_lent;
  count(batch);
  return true;
}

void UdpSender::send_copies(size_t first, size_t end) {
  if (first == end) return;
  if (end - first == 1) choose_cut(batches_[first]);
  const auto prepare = [&](size_t from) {
    size_t part = 0;
    for (size_t i = from; i < end; ++i)
      part = messages_->set(i - first, batches_[i], pieces_, part);
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

// A batch whose size the socket knows already says less to the kernel.
void UdpSender::choose_cut(const GsoBatch& batch) {
  if (Messages::cut_anyway(batch)) {
    if (batch.segments > 1) alike_ = 0;
    return;
  }
  const uint16_t wanted = Messages::cut_of(batch);
  alike_ = wanted == wanted_cut_ ? alike_ + 1 : 1;
  wanted_cut_ = wanted;
  UdpEndpoint& endpoint = *batch.path->endpoint;
  if (alike_ < kTrainsAlike || !endpoint.may_cut) return;
  alike_ = 0;
  cut_sends(endpoint.send, wanted);
}

void UdpSender::count(const GsoBatch& batch) {
  counters_.packets_sent += batch.segments;
  counters_.bytes_sent += batch.bytes;
  ++counters_.trains_sent;
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
  if (path.endpoint->reports_unreachable_hosts && std::exchange(tried_again_, &batch) != &batch)
    return true;
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
      counters_.send_drops += batch.segments;
      return false;
    case EINVAL:
    case EIO:
      // Older kernels say EINVAL where newer ones say EMSGSIZE.
      if (batch.stride > path.max_datagram_bytes) break;
      if (path.endpoint->send.packet_payload_bytes !=
          0) {  // some take offence where nothing is to be cut
        path.endpoint->may_cut = false;
        cut_sends(path.endpoint->send, 0);
        return path.endpoint->send.packet_payload_bytes == 0;
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
    return "the path to " + print(path.icrc.flow().destination) + " carries only " +
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
