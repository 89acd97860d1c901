// The abstract Unix socket of a slot: claiming it, and dispatching the messages that it receives.
#include "host/slot_directory.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>

#include "base/exhaustion.h"
#include "host/same_user.h"
#include "os/coarse_clock.h"
#include "os/socket_options.h"

namespace verbena::host {
namespace {

// Part of the socket's name and of every message. Processes of different versions do not find each
// other here and communicate over UDP only.
constexpr uint8_t kProtocolVersion = 2;

enum class Kind : uint8_t { Misrouted = 1, Report = 2, CountersRequest = 3, CountersReply = 4 };

// Messages stay on the host, so these are plain structs in host byte order.
struct Header {
  uint8_t magic[2] = {'V', 'B'};
  uint8_t version = kProtocolVersion;
  Kind kind{};
  uint32_t token = 0;  // a reply repeats its request's token
};
struct MisroutedHeader {
  Header header{.kind = Kind::Misrouted};
  LocalAddress arrived_at;
  wire::Gid source;
  wire::Gid destination;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  uint8_t forwarded = 0;  // no bool: the bytes of a foreign message may not be a valid one
  uint32_t stride = 0;
};
MisroutedHeader misrouted_header(const LocalAddress& arrived_at, const wire::RxMeta& meta,
                                 uint32_t stride) {
  MisroutedHeader h;
  h.arrived_at = arrived_at;
  h.source = meta.source;
  h.destination = meta.destination;
  h.traffic_class = meta.traffic_class;
  h.hop_limit = meta.hop_limit;
  h.forwarded = meta.forwarded ? 1 : 0;
  h.stride = stride;
  return h;
}
struct ReportHeader {
  Header header{.kind = Kind::Report};
  LocalAddress address;
  uint32_t round = 0;
  uint16_t index = 0;
  uint8_t slot = 0;
  // The services follow.
};
static_assert(std::is_trivially_copyable_v<MisroutedHeader> &&
              std::is_trivially_copyable_v<ReportHeader>);

constexpr size_t kLargestBatch = 65536;
constexpr size_t kLargestMessage = sizeof(MisroutedHeader) + kLargestBatch;
constexpr size_t kLargestReply = size_t{128} * 1024;  // below the default send buffer
constexpr int kMessagesPerPoll = 64;
constexpr int kServicesPerPoll = 16;

os::UnixAddress address_of_slot(uint8_t slot) {
  return os::UnixAddress::abstract("verbena/%u/slot/%u", kProtocolVersion, slot);
}

os::UnixAddress address_of(const ServiceName& name) {
  char where[2 * sizeof name.address.bytes + 1] = "ipv4";
  if (name.where == ServiceName::Where::AnyIpv6) std::strcpy(where, "ipv6");
  if (name.where == ServiceName::Where::Address) {
    char* to = where;
    for (const std::byte b : name.address.bytes) {
      to += std::snprintf(to, 3, "%02x", std::to_integer<unsigned>(b));
    }
  }
  return os::UnixAddress::abstract("verbena/%u/service/%u/%016llx/%s", kProtocolVersion,
                                   name.interface_index,
                                   static_cast<unsigned long long>(name.service_id), where);
}

os::UniqueFd open_socket() {
  os::UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.valid() && !os::set_option(fd.get(), SOL_SOCKET, SO_PASSCRED, 1)) fd.reset();
  return fd;
}

// The kernel reports the real user of a datagram's sender. The sender names its effective user
// instead if they differ, because processes compare effective users (same_user.h).
struct EffectiveUser {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(ucred))> control{};

  void attach_to(msghdr& m) {
    m.msg_control = control.data();
    m.msg_controllen = control.size();
    cmsghdr* const c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_CREDENTIALS;
    c->cmsg_len = CMSG_LEN(sizeof(ucred));
    const ucred self{::getpid(), ::geteuid(), ::getegid()};
    std::memcpy(CMSG_DATA(c), &self, sizeof self);
  }
};

bool send_to(int fd, const os::UnixAddress& to, std::span<const std::byte> head,
             std::span<const std::byte> body) {
  iovec parts[2] = {{const_cast<std::byte*>(head.data()), head.size()},
                    {const_cast<std::byte*>(body.data()), body.size()}};
  msghdr m{};
  m.msg_name = const_cast<sockaddr_un*>(&to.sun);
  m.msg_namelen = to.bytes;
  m.msg_iov = parts;
  m.msg_iovlen = 2;
  EffectiveUser user;
  if (::geteuid() != ::getuid()) user.attach_to(m);
  return ::sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

void sleep_for(Duration wait) {
  const timespec pause{0, wait.ns};
  ::nanosleep(&pause, nullptr);
}

// The key of a service in the WaitBudget. A slot's key is its number; bit 63 separates the two.
uint64_t budget_key(const os::UnixAddress& of) {
  const std::string_view name(reinterpret_cast<const char*>(&of.sun), of.bytes);
  return std::hash<std::string_view>{}(name) | (uint64_t{1} << 63);
}

Forwarded outcome(bool sent) {
  if (sent) return Forwarded::Yes;
  return errno == ECONNREFUSED ? Forwarded::NoReceiver : Forwarded::Dropped;
}

template <typename T>
std::span<const std::byte> bytes_of_value(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <typename T>
std::optional<T> load_value(std::span<const std::byte> from) {
  if (from.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(static_cast<void*>(&value), from.data(), sizeof value);
  return value;
}

// A message and its sender's credentials, which the kernel guarantees.
struct Message {
  std::span<const std::byte> bytes;
  ucred sender{};
  os::UnixAddress from;
};

enum class Read : uint8_t { Message, Unusable, Empty };

Read read_message(int fd, std::span<std::byte> buffer, Message& to) {
  iovec part{buffer.data(), buffer.size()};
  // There is space for credentials only, so the kernel closes any attached descriptors.
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(ucred))> control;
  msghdr m{};
  m.msg_name = &to.from.sun;
  m.msg_namelen = sizeof to.from.sun;
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = control.data();
  m.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EINTR ? Read::Unusable : Read::Empty;
  if ((m.msg_flags & MSG_TRUNC) != 0) return Read::Unusable;
  const cmsghdr* c = CMSG_FIRSTHDR(&m);
  if (c == nullptr || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS ||
      c->cmsg_len < CMSG_LEN(sizeof(ucred))) {
    return Read::Unusable;
  }
  std::memcpy(&to.sender, CMSG_DATA(c), sizeof to.sender);
  to.from.bytes = m.msg_namelen;
  to.bytes = buffer.first(static_cast<size_t>(n));
  const auto header = load_value<Header>(to.bytes);
  const bool ours = header && header->magic[0] == 'V' && header->magic[1] == 'B' &&
                    header->version == kProtocolVersion;
  return ours && is_own_user(to.sender.uid) ? Read::Message : Read::Unusable;
}

}  // namespace

uint8_t slot_of_name(std::string_view name) {
  const os::UnixAddress some = address_of_slot(kFirstSlot);
  const std::string_view whole(some.sun.sun_path, some.bytes - offsetof(sockaddr_un, sun_path));
  const std::string_view prefix = whole.substr(0, whole.rfind('/') + 1);
  uint8_t slot = 0;
  if (name.starts_with(prefix)) {
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), slot);
  }
  return slot;
}

SlotDirectory::SlotDirectory(os::UniqueFd socket, uint8_t slot, CountersText counters)
    : socket_(std::move(socket)),
      slot_(slot),
      counters_(std::move(counters)),
      services_epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      buffer_(kLargestMessage) {}

Result<std::unique_ptr<SlotDirectory>> SlotDirectory::claim(CountersText counters) {
  os::UniqueFd fd = open_socket();
  if (!fd.valid()) return Error{errno, "cannot open a Unix socket for the directory of processes"};
  // Each process starts at a different slot. A new process is then unlikely to inherit the QPNs,
  // and the late packets, of one that has just ended.
  constexpr uint32_t kSlots = kLastSlot - kFirstSlot + 1;
  const uint32_t start = static_cast<uint32_t>(::getpid()) * 61u;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const auto slot = static_cast<uint8_t>(kFirstSlot + (start + i) % kSlots);
    const os::UnixAddress a = address_of_slot(slot);
    if (::bind(fd.get(), a.get(), a.bytes) == 0) {
      return std::unique_ptr<SlotDirectory>(
          new SlotDirectory(std::move(fd), slot, std::move(counters)));
    }
    if (errno != EADDRINUSE) return Error{errno, "cannot bind an abstract Unix socket"};
  }
  return Error{EBUSY, "all 254 process slots of this network namespace are taken"};
}

bool SlotDirectory::has_taken(size_t slots) {
  const os::UniqueFd fd = open_socket();
  size_t taken = 0;
  for (uint32_t slot = kFirstSlot; fd.valid() && slot <= kLastSlot && taken < slots; ++slot) {
    const os::UnixAddress a = address_of_slot(static_cast<uint8_t>(slot));
    // Another user's socket may refuse the connection, but not as one that does not exist.
    if (::connect(fd.get(), a.get(), a.bytes) == 0 || errno != ECONNREFUSED) ++taken;
  }
  return taken >= slots;
}

std::optional<Duration> SlotDirectory::next_wait(uint64_t destination) {
  const std::lock_guard lock(wait_mutex_);
  return wait_budget_.next_wait(destination, os::coarse_now());
}

Forwarded SlotDirectory::deliver(const os::UnixAddress& to, uint64_t destination,
                                 std::span<const std::byte> head, std::span<const std::byte> body) {
  for (;;) {
    const Forwarded result = outcome(send_to(socket_.get(), to, head, body));
    if (result != Forwarded::Dropped) {
      const std::lock_guard lock(wait_mutex_);
      wait_budget_.on_delivered(destination);
      return result;
    }
    if (errno != EAGAIN) return result;
    const auto wait = next_wait(destination);
    if (!wait) return result;
    waits_.fetch_add(1, std::memory_order_relaxed);
    sleep_for(*wait);
  }
}

Forwarded SlotDirectory::forward(uint8_t to_slot, const LocalAddress& arrived_at,
                                 const wire::RxMeta& meta, std::span<const std::byte> bytes,
                                 uint32_t stride, Wait wait) {
  const MisroutedHeader h = misrouted_header(arrived_at, meta, stride);
  const os::UnixAddress to = address_of_slot(to_slot);
  if (wait == Wait::No) return outcome(send_to(socket_.get(), to, bytes_of_value(h), bytes));
  return deliver(to, to_slot, bytes_of_value(h), bytes);
}

Forwarded SlotDirectory::forward(const ServiceName& to, const LocalAddress& arrived_at,
                                 const wire::RxMeta& meta, std::span<const std::byte> bytes) {
  const MisroutedHeader h = misrouted_header(arrived_at, meta, static_cast<uint32_t>(bytes.size()));
  const os::UnixAddress address = address_of(to);
  return deliver(address, budget_key(address), bytes_of_value(h), bytes);
}

Status SlotDirectory::claim_service(const ServiceName& name) {
  os::UniqueFd fd = open_socket();
  if (!fd.valid()) return Error{errno, "cannot open a Unix socket to listen"};
  const os::UnixAddress a = address_of(name);
  if (::bind(fd.get(), a.get(), a.bytes) != 0) {
    if (errno == EADDRINUSE) return Error{errno, "another process listens on this port"};
    return Error{errno, "cannot bind an abstract Unix socket"};
  }
  const std::lock_guard lock(mutex_);
  epoll_event event{EPOLLIN, {}};
  event.data.fd = fd.get();
  if (::epoll_ctl(services_epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
    return Error{errno, "cannot watch another descriptor"};
  }
  services_.push_back({name, std::move(fd)});
  return {};
}

void SlotDirectory::release_service(const ServiceName& name) {
  const std::lock_guard lock(mutex_);
  const auto it = std::ranges::find(services_, name, &Service::name);
  if (it == services_.end()) return;
  // Closing the socket does not remove it from the epoll set if a forked child has a copy of it.
  ::epoll_ctl(services_epoll_.get(), EPOLL_CTL_DEL, it->socket.get(), nullptr);
  services_.erase(it);
}

std::vector<uint32_t> SlotDirectory::services_at(const LocalAddress& address) const {
  using Where = ServiceName::Where;
  const Where any = address.gid.is_ipv4() ? Where::AnyIpv4 : Where::AnyIpv6;
  std::vector<uint32_t> found;
  const std::lock_guard lock(mutex_);
  for (const Service& service : services_) {
    const ServiceName& name = service.name;
    const bool here =
        name.where == any || (name.where == Where::Address && name.address == address.gid);
    if (!here || name.service_id > UINT32_MAX || found.size() >= kMaxServicesInReport) continue;
    found.push_back(static_cast<uint32_t>(name.service_id));
  }
  return found;
}

bool SlotDirectory::is_claimed(const ServiceName& name) {
  const os::UniqueFd fd = open_socket();
  const os::UnixAddress a = address_of(name);
  return fd.valid() && ::connect(fd.get(), a.get(), a.bytes) == 0;
}

Forwarded SlotDirectory::report(uint8_t to_slot, const MemberReport& report) {
  ReportHeader h;
  h.address = report.address;
  h.round = report.round;
  h.index = report.index;
  h.slot = report.slot;
  return outcome(send_to(socket_.get(), address_of_slot(to_slot), bytes_of_value(h),
                         std::as_bytes(std::span(report.services))));
}

struct SlotDirectory::CountersQuery {
  os::UnixAddress from;
  uint32_t token;
};

void SlotDirectory::poll(const Mailbox* self) {
  std::vector<CountersQuery> queries;
  {
    const std::lock_guard lock(mutex_);
    read_all(socket_.get(), self, queries);
    epoll_event ready[kServicesPerPoll];
    const int n =
        services_.empty() ? 0 : ::epoll_wait(services_epoll_.get(), ready, kServicesPerPoll, 0);
    for (int i = 0; i < n; ++i) read_all(ready[i].data.fd, self, queries);
  }
  for (const CountersQuery& q : queries) {
    (void)try_allocating([&] {  // without memory there is no reply
      const std::string text = counters_ ? counters_() : std::string();
      const Header reply{.kind = Kind::CountersReply, .token = q.token};
      send_to(socket_.get(), q.from, bytes_of_value(reply),
              std::as_bytes(std::span(text)).first(std::min(text.size(), kLargestReply)));
    });
  }
}

void SlotDirectory::read_all(int fd, const Mailbox* self, std::vector<CountersQuery>& queries) {
  for (int i = 0; i < kMessagesPerPoll; ++i) {
    Message m;
    const Read read = read_message(fd, buffer_, m);
    if (read == Read::Empty) break;
    if (read == Read::Unusable) continue;
    const Header header = *load_value<Header>(m.bytes);
    const bool had_memory = try_allocating([&] {
      switch (header.kind) {
        case Kind::Misrouted:
          return deliver_misrouted(m.bytes, m.sender.pid == ::getpid(), self);
        case Kind::Report:
          return deliver_report(m.bytes, self);
        case Kind::CountersRequest:
          return queries.push_back({m.from, header.token});
        case Kind::CountersReply:
          return;  // this socket sends no requests
      }
    });
    if (!had_memory) ++undeliverable_;
  }
}

void SlotDirectory::add(Mailbox& mailbox) {
  const std::lock_guard lock(mutex_);
  mailboxes_.push_back(&mailbox);
}

void SlotDirectory::remove(Mailbox& mailbox) {
  const std::lock_guard lock(mutex_);
  std::erase(mailboxes_, &mailbox);
}

uint64_t SlotDirectory::undeliverable() const {
  const std::lock_guard lock(mutex_);
  return undeliverable_;
}

void SlotDirectory::deliver_misrouted(std::span<const std::byte> message, bool is_from_own_process,
                                      const Mailbox* self) {
  const auto h = load_value<MisroutedHeader>(message);
  if (!h) return;
  const std::span<const std::byte> body = message.subspan(sizeof *h);
  Mailbox* const box = mailbox_of(h->arrived_at);
  if (box == nullptr || body.empty() || h->stride == 0) {
    ++undeliverable_;
    return;
  }
  // A lane passes a management datagram on to the first lane of its process, which has yet to
  // route it; a datagram from another process is never forwarded again.
  const wire::RxMeta meta{.source = h->source,
                          .destination = h->destination,
                          .traffic_class = h->traffic_class,
                          .hop_limit = h->hop_limit,
                          .forwarded = !is_from_own_process || h->forwarded != 0};
  MisroutedPackets batch{meta, h->stride, {body.begin(), body.end()}};
  if (!box->deliver(std::move(batch), box != self)) ++undeliverable_;
}

void SlotDirectory::deliver_report(std::span<const std::byte> message, const Mailbox* self) {
  const auto h = load_value<ReportHeader>(message);
  if (!h) return;
  Mailbox* const box = mailbox_of(h->address);
  if (box == nullptr) return;
  MemberReport report{h->address, h->round, h->index, h->slot, {}};
  const std::span<const std::byte> rest = message.subspan(sizeof *h);
  report.services.resize(std::min(rest.size() / sizeof(uint32_t), kMaxServicesInReport));
  if (!report.services.empty()) {
    std::memcpy(report.services.data(), rest.data(), report.services.size() * sizeof(uint32_t));
  }
  box->deliver(std::move(report), box != self);
}

Mailbox* SlotDirectory::mailbox_of(const LocalAddress& address) {
  for (Mailbox* box : mailboxes_) {
    if (box->has_address(address)) return box;
  }
  return nullptr;
}

std::vector<SlotReport> SlotDirectory::query_all(Duration timeout) {
  std::vector<SlotReport> reports;
  const os::UniqueFd fd = open_socket();
  // A bind with the family alone makes the kernel choose a free name for the replies.
  const sockaddr_un any{.sun_family = AF_UNIX, .sun_path = {}};
  if (!fd.valid() ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any.sun_family) != 0) {
    return reports;
  }
  auto read_replies = [&, buffer = std::vector<std::byte>(sizeof(Header) + kLargestReply)](
                          size_t& missing) mutable {
    for (;;) {
      Message m;
      const Read read = read_message(fd.get(), buffer, m);
      if (read == Read::Empty) return;
      if (read == Read::Unusable) continue;
      const Header header = *load_value<Header>(m.bytes);
      if (header.kind != Kind::CountersReply) continue;
      const auto of = std::ranges::find(reports, header.token, &SlotReport::slot);
      if (of == reports.end() || of->pid != 0) continue;
      of->pid = m.sender.pid;
      of->uid = m.sender.uid;
      const auto text = m.bytes.subspan(sizeof header);
      of->text.assign(reinterpret_cast<const char*>(text.data()), text.size());
      --missing;
    }
  };
  auto ask = [&, budget = WaitBudget()](uint8_t slot) mutable {
    const Header request{.kind = Kind::CountersRequest, .token = slot};
    for (;;) {
      if (send_to(fd.get(), address_of_slot(slot), bytes_of_value(request), {})) return true;
      if (errno != EAGAIN) return false;
      const auto wait = budget.next_wait(slot, os::coarse_now());
      if (!wait) return true;  // the process exists but does not read
      sleep_for(*wait);
    }
  };
  // Requests and replies alternate, because a Unix socket queues few replies.
  size_t missing = 0;
  for (uint32_t slot = kFirstSlot; slot <= kLastSlot; ++slot) {
    if (ask(static_cast<uint8_t>(slot))) {
      reports.push_back({.slot = static_cast<uint8_t>(slot), .pid = 0, .uid = 0, .text = {}});
      ++missing;
    }
    read_replies(missing);
  }
  constexpr int64_t kStepMs = 5;
  for (int64_t waited = 0; missing > 0 && waited < timeout.ns / 1'000'000; waited += kStepMs) {
    pollfd p{.fd = fd.get(), .events = POLLIN, .revents = 0};
    ::poll(&p, 1, kStepMs);
    read_replies(missing);
  }
  return reports;
}

}  // namespace verbena::host
