// Handshakes between processes, and the links that result from them.
#include "datapath/shm/shm_datapath.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/exhaustion.h"
#include "datapath/shm/handshake.h"
#include "host/local_address.h"
#include "host/same_user.h"
#include "os/no_cancel.h"

namespace verbena::datapath {
namespace {

constexpr size_t kMaxUnidentified = 64;
constexpr int kEventsPerRound = 64;
constexpr Duration kReplyTimeout = milliseconds(100);
// The length of a busy poll grows with every success and shrinks with every failure.
constexpr uint32_t kMinPolls = 64;
constexpr uint32_t kMaxPolls = 1024;
constexpr uint32_t kPollsGained = 64;
constexpr size_t kBurst = 8;

bool is_own_address(const wire::Gid& gid, uint32_t interface_index) {
  return host::is_local(host::local_address(gid, interface_index));
}

}  // namespace

Result<std::unique_ptr<ShmDatapath>> ShmDatapath::open(const HandshakeInfo& self,
                                                       uint32_t interface_index) {
  os::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  auto exposure = OwnExposure::create();
  if (!epoll.valid()) return Error{errno, "too many open files"};
  host::UnixListener listener(shm_address(self.slot), epoll.get());
  if (!listener.valid()) return Error{errno, "cannot listen for processes of this host"};
  return std::unique_ptr<ShmDatapath>(new ShmDatapath(
      self, interface_index, exposure.ok() ? std::move(exposure.value()) : OwnExposure(),
      std::move(listener), std::move(epoll)));
}

ShmDatapath::ShmDatapath(const HandshakeInfo& self, uint32_t interface_index, OwnExposure exposure,
                         host::UnixListener listener, os::UniqueFd epoll)
    : slot_(self.slot),
      wire_packets_only_(self.wire_packets_only),
      interface_index_(interface_index),
      exposure_(std::move(exposure)),
      epoll_(std::move(epoll)),
      listener_(std::move(listener)) {
  unidentified_.reserve(kMaxUnidentified);
}

ShmDatapath::~ShmDatapath() = default;

Result<std::unique_ptr<LocalMedium>> ShmDatapath::open_medium(const LocalMediumOptions& options) {
  auto opened = open({.slot = options.slot, .wire_packets_only = options.wire_packets_only},
                     options.interface_index);
  if (!opened.ok()) return opened.error();
  return std::unique_ptr<LocalMedium>(std::move(opened.value()));
}

bool ShmDatapath::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

// Closing the socket does not remove it from the epoll set if a forked child has a copy of it.
void ShmDatapath::close_socket(os::UniqueFd& fd) {
  if (fd.valid()) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
  fd.reset();
}

// --- handshakes ----------------------------------------------------------------------------------

size_t ShmDatapath::find_pending(uint8_t slot) const {
  const auto found = std::ranges::find(pending_, slot, &PendingHandshake::slot);
  return static_cast<size_t>(found - pending_.begin());
}

bool ShmDatapath::reach(uint8_t slot, Instant now) {
  if (slot == 0 || slot == 255) return true;
  Link* const link = by_slot_[slot];
  // Another process may have the slot by now.
  if (link != nullptr && is_hung_up(link->fd())) end_link(*link);
  if (by_slot_[slot] != nullptr) return true;
  if (slot == slot_) {
    open_own_link();
    return true;
  }
  size_t index = find_pending(slot);
  if (index == pending_.size()) {
    attend();  // the peer may have connected to us meanwhile
    if (by_slot_[slot] != nullptr) return true;
    index = find_pending(slot);
    if (index == pending_.size()) connect(slot, now);
    index = find_pending(slot);
  }
  return index == pending_.size() || now - pending_[index].since > kReplyTimeout;
}

void ShmDatapath::connect(uint8_t slot, Instant now) {
  os::UniqueFd socket = open_shm_socket();
  if (!socket.valid()) return report(Reason::NoMemory, slot);
  const os::UnixAddress name = shm_address(slot);
  if (::connect(socket.get(), name.get(), name.bytes) != 0) {
    return report(Reason::NotListening, slot);
  }
  if (!host::peer_is_own_user(socket.get())) return report(Reason::OtherUser, slot);
  os::UniqueFd descriptor;
  auto segment = Segment::create(descriptor);
  if (!segment.ok() ||
      !send_handshake(socket.get(), own_info(), exposure_.descriptor(), descriptor.get()) ||
      !watch(socket.get())) {
    return report(Reason::NoMemory, slot);
  }
  pending_.push_back({slot, std::move(socket), std::move(segment.value()), now});
}

void ShmDatapath::accept_connections() {
  for (int i = 0; i < host::UnixListener::kAcceptsPerTurn; ++i) {
    os::UniqueFd socket;
    const host::UnixListener::Accepted accepted = listener_.accept_next(socket);
    if (accepted == host::UnixListener::Accepted::None) return;
    // A link needs more descriptors than this socket.
    if (accepted == host::UnixListener::Accepted::OtherUser || !listener_.has_spare() ||
        !watch(socket.get())) {
      ++counters_.links_refused;
      continue;
    }
    if (unidentified_.size() == kMaxUnidentified) {  // drop the oldest
      ++counters_.links_refused;
      close_socket(unidentified_.front());
      unidentified_.erase(unidentified_.begin());
    }
    unidentified_.push_back(std::move(socket));
    const int fd = unidentified_.back().get();
    if (!try_allocating([&] { read_handshake(fd); })) ++counters_.links_refused;
  }
}

// Reads the handshake of an accepted connection. Returns whether `fd` is one.
bool ShmDatapath::read_handshake(int fd) {
  const auto found = std::ranges::find(unidentified_, fd, &os::UniqueFd::get);
  if (found == unidentified_.end()) return false;
  HandshakeInfo peer;
  Descriptors descriptors;
  const HandshakeRead read = receive_handshake(fd, peer, descriptors);
  if (read == HandshakeRead::NotYet) return true;
  os::UniqueFd socket = std::move(*found);
  unidentified_.erase(found);
  if (read == HandshakeRead::Received && peer.slot != 0 && peer.slot != 255 && peer.slot != slot_) {
    accept_handshake(std::move(socket), peer, descriptors);
  } else {
    ++counters_.links_refused;
    close_socket(socket);
  }
  return true;
}

// If two processes connect to each other, the connection of the lower slot is used.
void ShmDatapath::accept_handshake(os::UniqueFd socket, const HandshakeInfo& peer,
                                   const Descriptors& descriptors) {
  const uint8_t slot = peer.slot;
  Link* const before = by_slot_[slot];
  if (before != nullptr && is_hung_up(before->fd())) end_link(*before);
  size_t index = find_pending(slot);
  if (index != pending_.size() && (slot < slot_ || is_hung_up(pending_[index].socket.get()))) {
    close_socket(pending_[index].socket);
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(index));
    index = pending_.size();
  }
  auto segment = Segment::adopt(descriptors.segment.get());
  const bool wanted = by_slot_[slot] == nullptr && index == pending_.size();
  if (!wanted || !segment.ok() ||
      !send_handshake(socket.get(), own_info(), exposure_.descriptor(), -1)) {
    ++counters_.links_refused;
    return close_socket(socket);
  }
  const RingMemory written = segment.value().written_by(LinkEnd::Accepting);
  const RingMemory read = segment.value().written_by(LinkEnd::Connecting);
  open_link(slot, std::move(socket), {}, std::move(segment.value()), written, read);
  enable_access(peer, descriptors.exposure.get());
}

void ShmDatapath::read_reply(size_t index) {
  HandshakeInfo peer;
  Descriptors descriptors;
  const HandshakeRead read = receive_handshake(pending_[index].socket.get(), peer, descriptors);
  if (read == HandshakeRead::NotYet) return;
  PendingHandshake pending = std::move(pending_[index]);
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(index));
  const uint8_t slot = peer.slot;
  if (read == HandshakeRead::Received && slot == pending.slot && by_slot_[slot] == nullptr) {
    const RingMemory written = pending.segment.written_by(LinkEnd::Connecting);
    const RingMemory read_from = pending.segment.written_by(LinkEnd::Accepting);
    open_link(slot, std::move(pending.socket), {}, std::move(pending.segment), written, read_from);
    return enable_access(peer, descriptors.exposure.get());
  }
  close_socket(pending.socket);
  if (by_slot_[pending.slot] == nullptr) report(Reason::Refused, pending.slot);
}

// Queue pairs of the same process also exchange packets without the kernel.
void ShmDatapath::open_own_link() {
  int ends[2];
  os::UniqueFd descriptor;
  auto segment = Segment::create(descriptor);
  if (!segment.ok() ||
      ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return report(Reason::NoMemory, slot_);
  }
  os::UniqueFd socket(ends[0]);
  os::UniqueFd wake_fd(ends[1]);
  if (!watch(socket.get())) return report(Reason::NoMemory, slot_);
  const RingMemory ring = segment.value().written_by(LinkEnd::Connecting);
  open_link(slot_, std::move(socket), std::move(wake_fd), std::move(segment.value()), ring, ring);
  enable_access(own_info(), exposure_.descriptor());
}

// Enables one-sided access between both processes, as far as the kernel permits.
void ShmDatapath::enable_access(const HandshakeInfo& info, int exposure) {
  const uint8_t slot = info.slot;
  const bool wire_packets_only = wire_packets_only_ || info.wire_packets_only;
  by_slot_[slot]->set_wire_packets_only(wire_packets_only);
  if (wire_packets_only) return;
  auto peer = PeerExposure::map(exposure);
  if (!peer.ok()) return;
  const bool self = slot == slot_;
  if (!self && !std::exchange(permitted_peers_, true)) permit_peers();
  Link& link = *by_slot_[slot];
  link.enable_access(
      {self ? ::getpid() : peer_pid(link.fd()), std::move(peer.value()), self ? -1 : link.fd()});
}

// All links of this medium are of one type.
bool ShmDatapath::access(LocalLink& to, const wire::OneSided& request, const Addresses& addresses) {
  auto& link = static_cast<Link&>(to);
  const bool done = link.access(request, addresses);
  if (!done && link.take_denied()) report(Reason::Denied, link.slot());
  return done;
}

void ShmDatapath::revoke_copies(const MemoryRange& withdrawn, RevokedCopies& to) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const auto& link : links_) revoke_copy(*link, withdrawn, to);
}

void ShmDatapath::revoke_copies_of(uint8_t slot, RevokedCopies& to) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (by_slot_[slot] != nullptr) revoke_copy(*by_slot_[slot], kAllMemory, to);
}

void ShmDatapath::revoke_copy(Link& link, const MemoryRange& withdrawn, RevokedCopies& to) {
  const uint32_t number = link.ended ? 0 : link.copies().revoke(withdrawn);
  if (number == 0) return;
  to.add({link.id(), number, {peer_pid(link.fd()), link.copies().thread()}});
}

Link* ShmDatapath::find_link(uint32_t id) const {
  const auto found = std::ranges::find(links_, id, [](const auto& link) { return link->id(); });
  return found != links_.end() && !(*found)->ended ? found->get() : nullptr;
}

bool ShmDatapath::is_over(const RevokedCopy& copy) {
  Link* const link = find_link(copy.link);
  if (link != nullptr && is_hung_up(link->fd())) end_link(*link);
  return link == nullptr || link->ended || link->copies().is_over(copy.number);
}

void ShmDatapath::note_ended(const RevokedCopy& copy) {
  if (Link* const link = find_link(copy.link)) link->copies().note_ended(copy.number);
}

void ShmDatapath::end_link_of(const RevokedCopy& copy) {
  if (Link* const link = find_link(copy.link)) end_link(*link);
}

void ShmDatapath::open_link(uint8_t slot, os::UniqueFd socket, os::UniqueFd wake_fd,
                            Segment segment, const RingMemory& written, const RingMemory& read) {
  links_.push_back(std::make_unique<Link>(slot, std::move(socket), std::move(wake_fd),
                                          std::move(segment), written, read, counters_));
  by_slot_[slot] = links_.back().get();
  set_link(slot, by_slot_[slot]);
  if (armed_) links_.back()->sleep();
  ++counters_.links_opened;
}

void ShmDatapath::end_link(Link& link) {
  if (std::exchange(link.ended, true)) return;
  has_ended_links_ = true;
  if (by_slot_[link.slot()] == &link) {
    by_slot_[link.slot()] = nullptr;
    set_link(link.slot(), nullptr);
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.fd(), nullptr);
  // A live peer detects the shutdown before its next copy, and a copy that it is preparing is
  // revoked. So the copies of an ended link need no waiting.
  ::shutdown(link.fd(), SHUT_RDWR);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  (void)link.copies().revoke(kAllMemory);
  if (!link.is_corrupted()) return;
  ++counters_.links_broken;
  report(Reason::Broken, link.slot());
}

// Removes ended links that have no more packets. No batch may point into them.
void ShmDatapath::remove_ended() {
  const auto is_done = [](const auto& link) { return link->ended && link->empty(); };
  if (std::erase_if(links_, is_done) != 0) note_gone();
  has_ended_links_ = std::ranges::any_of(links_, [](const auto& link) { return link->ended; });
}

void ShmDatapath::attend() {
  const os::NoCancel no_cancel;
  receives_since_attend_ = 0;
  epoll_event events[kEventsPerRound];
  const int n = ::epoll_wait(epoll_.get(), events, kEventsPerRound, 0);
  // New connections first: a peer may have refused ours because it has connected to us.
  accept_connections();
  for (int i = 0; i < n; ++i) {
    const int fd = events[i].data.fd;
    // Without memory for a link, its socket is closed and packets go over UDP.
    if (!try_allocating([&] { attend(fd); })) ++counters_.links_refused;
  }
}

void ShmDatapath::attend(int fd) {
  if (fd == listener_.fd() || read_handshake(fd)) return;
  const auto pending = std::ranges::find_if(
      pending_, [&](const PendingHandshake& c) { return c.socket.get() == fd; });
  if (pending != pending_.end()) return read_reply(static_cast<size_t>(pending - pending_.begin()));
  const auto link = std::ranges::find_if(links_, [&](const auto& l) { return l->fd() == fd; });
  if (link == links_.end() || (*link)->ended) return;
  if (is_hung_up(fd)) {
    end_link(**link);
  } else if (!armed_) {  // otherwise the byte must wake the sleeping thread
    (*link)->drain();
  }
}

void ShmDatapath::report(Reason reason, uint8_t slot) {
  if (reason != Reason::Broken && reason != Reason::Denied) ++counters_.links_refused;
  const uint32_t bit = 1u << static_cast<uint32_t>(reason);
  if ((reported_ & bit) != 0) return;
  reported_ |= bit;
  const char* reason_text = "";
  switch (reason) {
    case Reason::NotListening:
      reason_text =
          "does not accept shared memory (VERBENA_DATAPATH=udp there, another version, or it has "
          "ended)";
      break;
    case Reason::OtherUser:
      reason_text = "belongs to another user";
      break;
    case Reason::Refused:
      reason_text = "refused to share memory";
      break;
    case Reason::NoMemory:
      reason_text =
          "gets no shared memory from us (memfd_create failed, too many open files, or ulimit -f)";
      break;
    case Reason::Denied:
      (void)try_allocating([&] {
        notice_ =
            "the kernel denies access to the memory of other processes (ptrace): WRITEs and READs "
            "need the peer's CPU";
      });
      return;
    case Reason::Broken:
      reason_text = "wrote invalid data into the shared memory";
      break;
  }
  (void)try_allocating([&] {
    notice_ = "the process of slot " + std::to_string(slot) + " " + reason_text +
              ": packets to it go over UDP (logged for the first such process only)";
  });
}

std::optional<std::string> ShmDatapath::take_notice() {
  return std::exchange(notice_, std::nullopt);
}

// --- packets -------------------------------------------------------------------------------------

std::span<const wire::RxPacket> ShmDatapath::receive() {
  batch_.clear();
  if (++receives_since_attend_ >= kAttendEvery) attend();
  if (has_ended_links_) [[unlikely]]
    remove_ended();
  const size_t count = links_.size();
  if (++next_link_ >= count) next_link_ = 0;
  for (size_t i = 0, at = next_link_; i < count; ++i, at = at + 1 < count ? at + 1 : 0) {
    Link& link = *links_[at];
    link.release();
    link.take(batch_, is_own_address, interface_index_);
    if (link.is_corrupted()) [[unlikely]]
      end_link(link);
  }
  if (batch_.count != 0) burst_ = batch_.count >= kBurst;
  return batch_.view();
}

void ShmDatapath::release() {
  for (const auto& link : links_) link->release();
}

// A thread that waits for a response polls again at once, so polling here saves the calls in
// between. After a burst there is no busy poll: it would take the writer's cache lines away.
std::span<const wire::RxPacket> ShmDatapath::busy_poll() {
  if (links_.empty() || burst_) return {};
  Link& link = *links_[next_link_ < links_.size() ? next_link_ : 0];
  if (link.poll(polls_)) {
    link.take(batch_, is_own_address, interface_index_);
    polls_ = std::min(polls_ + kPollsGained, kMaxPolls);
  } else {
    polls_ = std::max(polls_ - 1, kMinPolls);
  }
  return batch_.view();
}

void ShmDatapath::flush() {
  for (const auto& link : links_) {
    if (link->is_flush_due() && !link->ended) link->flush();
  }
}

bool ShmDatapath::arm() {
  armed_ = true;
  bool empty = true;
  for (const auto& link : links_) {
    link->release();
    link->sleep();
    empty &= link->empty();
  }
  empty &= !has_ended_links_;  // these must be removed first
  if (!empty) disarm();
  return empty;
}

void ShmDatapath::disarm() {
  if (!std::exchange(armed_, false)) return;
  for (const auto& link : links_) link->wake();
}

void ShmDatapath::append_counters(std::vector<Counter>& to) const {
  const ShmCounters& c = counters_;
  to.push_back({"shm_links", links_.size(), "links to other processes of this host now"});
#define X(name, meaning) to.push_back({"shm_" #name, c.name, meaning});
  VERBENA_SHM_COUNTERS(X)
#undef X
}

}  // namespace verbena::datapath
