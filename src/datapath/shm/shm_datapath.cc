// Calls between processes, and the rounds over their links.
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

constexpr size_t kMostGreeting = 64;
constexpr int kEventsPerRound = 64;
constexpr Duration kPatience = milliseconds(100);
// How often one that found nothing looks again: the more, the more often that is no waste of time.
constexpr uint32_t kLeastLooks = 64;
constexpr uint32_t kMostLooks = 1024;
constexpr uint32_t kLooksGained = 64;
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
  greeting_.reserve(kMostGreeting);
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

// Closing alone does not end it where a forked child has a copy of the socket.
void ShmDatapath::forget(os::UniqueFd& fd) {
  if (fd.valid()) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
  fd.reset();
}

// --- calls
// -----------------------------------------------------------------------------------------

size_t ShmDatapath::call_to(uint8_t slot) const {
  const auto found = std::ranges::find(calls_, slot, &Call::slot);
  return static_cast<size_t>(found - calls_.begin());
}

bool ShmDatapath::reach(uint8_t slot, Instant now) {
  if (slot == 0 || slot == 255) return true;
  Link* const link = by_slot_[slot];
  // The slot may be another process's by now.
  if (link != nullptr && is_hung_up(link->fd())) end_link(*link);
  if (by_slot_[slot] != nullptr) return true;
  if (slot == slot_) {
    open_loop();
    return true;
  }
  size_t index = call_to(slot);
  if (index == calls_.size()) {
    attend();  // it may have called us meanwhile
    if (by_slot_[slot] != nullptr) return true;
    index = call_to(slot);
    if (index == calls_.size()) call(slot, now);
    index = call_to(slot);
  }
  return index == calls_.size() || now - calls_[index].since > kPatience;
}

void ShmDatapath::call(uint8_t slot, Instant now) {
  os::UniqueFd socket = open_shm_socket();
  if (!socket.valid()) return tell(Reason::NoMemory, slot);
  const os::UnixAddress name = shm_address(slot);
  if (::connect(socket.get(), name.get(), name.bytes) != 0) {
    return tell(Reason::NobodyListens, slot);
  }
  if (!host::peer_is_own_user(socket.get())) return tell(Reason::OtherUser, slot);
  os::UniqueFd descriptor;
  auto segment = Segment::create(descriptor);
  if (!segment.ok() ||
      !send_handshake(socket.get(), greeting(), exposure_.descriptor(), descriptor.get()) ||
      !watch(socket.get())) {
    return tell(Reason::NoMemory, slot);
  }
  calls_.push_back({slot, std::move(socket), std::move(segment.value()), now});
}

void ShmDatapath::answer_calls() {
  for (int i = 0; i < host::UnixListener::kAcceptsPerTurn; ++i) {
    os::UniqueFd socket;
    const host::UnixListener::Accepted accepted = listener_.accept_next(socket);
    if (accepted == host::UnixListener::Accepted::None) return;
    // A link takes more descriptors than the caller's.
    if (accepted == host::UnixListener::Accepted::OtherUser || !listener_.has_spare() ||
        !watch(socket.get())) {
      ++counters_.links_refused;
      continue;
    }
    if (greeting_.size() ==
        kMostGreeting) {  // whoever has been silent for longest has had its time
      ++counters_.links_refused;
      forget(greeting_.front());
      greeting_.erase(greeting_.begin());
    }
    greeting_.push_back(std::move(socket));
    const int fd = greeting_.back().get();
    if (!try_allocating([&] { read_handshake(fd); })) ++counters_.links_refused;
  }
}

// Of one that called us. True if it is one.
bool ShmDatapath::read_handshake(int fd) {
  const auto found = std::ranges::find(greeting_, fd, &os::UniqueFd::get);
  if (found == greeting_.end()) return false;
  HandshakeInfo caller;
  Descriptors descriptors;
  const HandshakeRead read = receive_handshake(fd, caller, descriptors);
  if (read == HandshakeRead::NotYet) return true;
  os::UniqueFd socket = std::move(*found);
  greeting_.erase(found);
  if (read == HandshakeRead::Received && caller.slot != 0 && caller.slot != 255 &&
      caller.slot != slot_) {
    accept_handshake(std::move(socket), caller, descriptors);
  } else {
    ++counters_.links_refused;
    forget(socket);
  }
  return true;
}

// When two call each other, the call of the lower slot stands.
void ShmDatapath::accept_handshake(os::UniqueFd socket, const HandshakeInfo& caller,
                                   const Descriptors& descriptors) {
  const uint8_t slot = caller.slot;
  Link* const before = by_slot_[slot];
  if (before != nullptr && is_hung_up(before->fd())) end_link(*before);
  size_t call = call_to(slot);
  if (call != calls_.size() && (slot < slot_ || is_hung_up(calls_[call].socket.get()))) {
    forget(calls_[call].socket);
    calls_.erase(calls_.begin() + static_cast<ptrdiff_t>(call));
    call = calls_.size();
  }
  auto segment = Segment::adopt(descriptors.segment.get());
  const bool wanted = by_slot_[slot] == nullptr && call == calls_.size();
  if (!wanted || !segment.ok() ||
      !send_handshake(socket.get(), greeting(), exposure_.descriptor(), -1)) {
    ++counters_.links_refused;
    return forget(socket);
  }
  const RingMemory written = segment.value().written_by(LinkEnd::Accepting);
  const RingMemory read = segment.value().written_by(LinkEnd::Connecting);
  open_link(slot, std::move(socket), {}, std::move(segment.value()), written, read);
  allow_access(caller, descriptors.exposure.get());
}

void ShmDatapath::read_answer(size_t index) {
  HandshakeInfo answerer;
  Descriptors descriptors;
  const HandshakeRead read = receive_handshake(calls_[index].socket.get(), answerer, descriptors);
  if (read == HandshakeRead::NotYet) return;
  Call call = std::move(calls_[index]);
  calls_.erase(calls_.begin() + static_cast<ptrdiff_t>(index));
  const uint8_t slot = answerer.slot;
  if (read == HandshakeRead::Received && slot == call.slot && by_slot_[slot] == nullptr) {
    const RingMemory written = call.segment.written_by(LinkEnd::Connecting);
    const RingMemory read_from = call.segment.written_by(LinkEnd::Accepting);
    open_link(slot, std::move(call.socket), {}, std::move(call.segment), written, read_from);
    return allow_access(answerer, descriptors.exposure.get());
  }
  forget(call.socket);
  if (by_slot_[call.slot] == nullptr) tell(Reason::Refused, call.slot);
}

// Queue pairs of one process, too, are spared the detour through the kernel.
void ShmDatapath::open_loop() {
  int ends[2];
  os::UniqueFd descriptor;
  auto segment = Segment::create(descriptor);
  if (!segment.ok() ||
      ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return tell(Reason::NoMemory, slot_);
  }
  os::UniqueFd socket(ends[0]);
  os::UniqueFd bell(ends[1]);
  if (!watch(socket.get())) return tell(Reason::NoMemory, slot_);
  const RingMemory ring = segment.value().written_by(LinkEnd::Connecting);
  open_link(slot_, std::move(socket), std::move(bell), std::move(segment.value()), ring, ring);
  allow_access(greeting(), exposure_.descriptor());
}

// Each may do in the other's memory what that permits, if the kernel lets it.
void ShmDatapath::allow_access(const HandshakeInfo& said, int exposure) {
  const uint8_t slot = said.slot;
  const bool wire_packets_only = wire_packets_only_ || said.wire_packets_only;
  by_slot_[slot]->set_wire_packets_only(wire_packets_only);
  if (wire_packets_only) return;
  auto peer = PeerExposure::map(exposure);
  if (!peer.ok()) return;
  const bool self = slot == slot_;
  if (!self && !std::exchange(permitted_peers_, true)) permit_peers();
  Link& link = *by_slot_[slot];
  link.allow(
      {self ? ::getpid() : peer_pid(link.fd()), std::move(peer.value()), self ? -1 : link.fd()});
}

// All links of this medium are of one type.
bool ShmDatapath::access(LocalLink& to, const wire::OneSided& request, const Addresses& addresses) {
  auto& link = static_cast<Link&>(to);
  const bool done = link.access(request, addresses);
  if (!done && link.take_denied()) tell(Reason::Denied, link.slot());
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

void ShmDatapath::settle(const RevokedCopy& copy) {
  if (Link* const link = find_link(copy.link)) link->copies().settle(copy.number);
}

void ShmDatapath::end_link_of(const RevokedCopy& copy) {
  if (Link* const link = find_link(copy.link)) end_link(*link);
}

void ShmDatapath::open_link(uint8_t slot, os::UniqueFd socket, os::UniqueFd bell, Segment segment,
                            const RingMemory& written, const RingMemory& read) {
  links_.push_back(std::make_unique<Link>(slot, std::move(socket), std::move(bell),
                                          std::move(segment), written, read, counters_));
  by_slot_[slot] = links_.back().get();
  set_link(slot, by_slot_[slot]);
  if (armed_) links_.back()->sleep();
  ++counters_.links_opened;
}

void ShmDatapath::end_link(Link& link) {
  if (std::exchange(link.ended, true)) return;
  anything_ended_ = true;
  if (by_slot_[link.slot()] == &link) {
    by_slot_[link.slot()] = nullptr;
    set_link(link.slot(), nullptr);
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.fd(), nullptr);
  // A peer that lives on sees this before its next copy, and a copy that it has begun to prepare is
  // revoked: nobody waits for the copies of a link that has ended.
  ::shutdown(link.fd(), SHUT_RDWR);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  (void)link.copies().revoke(kAllMemory);
  if (!link.broken()) return;
  ++counters_.links_broken;
  tell(Reason::Broken, link.slot());
}

// Those that nothing more comes from. Not while a batch still points into them.
void ShmDatapath::remove_ended() {
  const auto is_done = [](const auto& link) { return link->ended && link->empty(); };
  if (std::erase_if(links_, is_done) != 0) note_gone();
  anything_ended_ = std::ranges::any_of(links_, [](const auto& link) { return link->ended; });
}

void ShmDatapath::attend() {
  const os::NoCancel no_cancel;
  calls_since_attended_ = 0;
  epoll_event events[kEventsPerRound];
  const int n = ::epoll_wait(epoll_.get(), events, kEventsPerRound, 0);
  // First those who call us: one whom we called may have refused because it has called us.
  answer_calls();
  for (int i = 0; i < n; ++i) {
    const int fd = events[i].data.fd;
    // Without memory for a link its socket closes, and packets go over UDP.
    if (!try_allocating([&] { attend(fd); })) ++counters_.links_refused;
  }
}

void ShmDatapath::attend(int fd) {
  if (fd == listener_.fd() || read_handshake(fd)) return;
  const auto call =
      std::ranges::find_if(calls_, [&](const Call& c) { return c.socket.get() == fd; });
  if (call != calls_.end()) return read_answer(static_cast<size_t>(call - calls_.begin()));
  const auto link = std::ranges::find_if(links_, [&](const auto& l) { return l->fd() == fd; });
  if (link == links_.end() || (*link)->ended) return;
  if (is_hung_up(fd)) {
    end_link(**link);
  } else if (!armed_) {  // otherwise it wakes the sleeping thread
    (*link)->drain();
  }
}

void ShmDatapath::tell(Reason reason, uint8_t slot) {
  if (reason != Reason::Broken && reason != Reason::Denied) ++counters_.links_refused;
  const uint32_t bit = 1u << static_cast<uint32_t>(reason);
  if ((told_ & bit) != 0) return;
  told_ |= bit;
  const char* why = "";
  switch (reason) {
    case Reason::NobodyListens:
      why =
          "takes no shared memory (VERBENA_DATAPATH=udp there, another version, or it has "
          "ended)";
      break;
    case Reason::OtherUser:
      why = "belongs to another user";
      break;
    case Reason::Refused:
      why = "refused to share memory";
      break;
    case Reason::NoMemory:
      why = "cannot be given shared memory (memfd_create, too many open files, ulimit -f)";
      break;
    case Reason::Denied:
      (void)try_allocating([&] {
        notice_ =
            "the kernel does not let us reach the memory of other processes (ptrace): WRITEs and "
            "READs need the peer's CPU";
      });
      return;
    case Reason::Broken:
      why = "wrote nonsense into the shared memory";
      break;
  }
  (void)try_allocating([&] {
    notice_ = "the process of slot " + std::to_string(slot) + " " + why +
              ": packets to it go over UDP (logged for the first such process only)";
  });
}

std::optional<std::string> ShmDatapath::take_notice() {
  return std::exchange(notice_, std::nullopt);
}

// --- packets
// ---------------------------------------------------------------------------------------

std::span<const wire::RxPacket> ShmDatapath::receive() {
  batch_.clear();
  if (++calls_since_attended_ >= kAttendEvery) attend();
  if (anything_ended_) [[unlikely]]
    remove_ended();
  const size_t count = links_.size();
  if (++turn_ >= count) turn_ = 0;
  for (size_t i = 0, at = turn_; i < count; ++i, at = at + 1 < count ? at + 1 : 0) {
    Link& link = *links_[at];
    link.release();
    link.take(batch_, is_own_address, interface_index_);
    if (link.broken()) [[unlikely]]
      end_link(link);
  }
  if (batch_.count != 0) burst_ = batch_.count >= kBurst;
  return batch_.view();
}

// Who has read on, and is done with it.
void ShmDatapath::release() {
  for (const auto& link : links_) link->release();
}

// Whoever waits for an answer asks again at once; most of that would be ways to get here. But the
// lines of a burst are better left to the writer until there is more of it.
std::span<const wire::RxPacket> ShmDatapath::busy_poll() {
  if (links_.empty() || burst_) return {};
  Link& link = *links_[turn_ < links_.size() ? turn_ : 0];
  if (link.await(looks_)) {
    link.take(batch_, is_own_address, interface_index_);
    looks_ = std::min(looks_ + kLooksGained, kMostLooks);
  } else {
    looks_ = std::max(looks_ - 1, kLeastLooks);
  }
  return batch_.view();
}

void ShmDatapath::flush() {
  for (const auto& link : links_) {
    if (link->anything_hidden() && !link->ended) link->flush();
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
  empty &= !anything_ended_;  // they are to be buried first
  if (!empty) disarm();
  return empty;
}

void ShmDatapath::disarm() {
  if (!std::exchange(armed_, false)) return;
  for (const auto& link : links_) link->wake();
}

void ShmDatapath::append_counters(std::vector<Counter>& to) const {
  const ShmCounters& c = counters_;
  to.insert(to.end(), {{"shm_packets_sent", c.packets_sent},
                       {"shm_bytes_sent", c.bytes_sent},
                       {"shm_packets_received", c.packets_received},
                       {"shm_bytes_received", c.bytes_received},
                       {"shm_dropped", c.dropped},
                       {"shm_wakes_sent", c.wakes_sent},
                       {"shm_wakes_received", c.wakes_received},
                       {"shm_links", links_.size()},
                       {"shm_links_opened", c.links_opened},
                       {"shm_links_refused", c.links_refused},
                       {"shm_links_broken", c.links_broken},
                       {"shm_copies", c.copies},
                       {"shm_retracted", c.retracted}});
}

}  // namespace verbena::datapath
