// Lifelines: one connected socket per pair of processes. The connecting process sends its slot in
// one byte.
#include "host/lifelines.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "base/exhaustion.h"
#include "host/same_user.h"
#include "os/unix_address.h"

namespace verbena::host {
namespace {

constexpr int kVersion = 1;
constexpr int kEventsPerCall = 64;

os::UnixAddress name_of(uint8_t slot) {
  return os::UnixAddress::abstract("verbena/life/%d/%u", kVersion, slot);
}

// Result of a read from a lifeline.
enum class ReadResult : uint8_t { Nothing, Byte, End };
ReadResult read_byte(int fd, int flags, uint8_t& byte) {
  const ssize_t bytes = ::recv(fd, &byte, 1, MSG_DONTWAIT | flags);
  if (bytes == 1) return ReadResult::Byte;
  return bytes < 0 && (errno == EAGAIN || errno == EINTR) ? ReadResult::Nothing : ReadResult::End;
}

}  // namespace

// Without a listener no other process can watch this one.
Lifelines::Lifelines(uint8_t slot)
    : slot_(slot), epoll_(::epoll_create1(EPOLL_CLOEXEC)), listener_(name_of(slot), epoll_.get()) {}

Lifelines::Lines::iterator Lifelines::add(os::UniqueFd socket, OpenedBy opened_by, uint8_t slot) {
  const int fd = socket.get();
  epoll_event event{EPOLLIN, {.fd = fd}};
  // A peer whose lifeline is closed treats this process as ended. Its lifeline therefore stays open
  // even if it cannot be watched.
  const bool is_watched = ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  if (!is_watched && opened_by == OpenedBy::Us) return lines_.end();
  auto node = spare_.extract(spare_.begin());
  node.key() = fd;
  node.mapped() = Line{std::move(socket), opened_by, slot};
  return lines_.insert(std::move(node)).position;
}

void Lifelines::reserve_line() {
  if (spare_.empty()) spare_.try_emplace(-1);
}

bool Lifelines::watch(uint8_t slot) {
  if (slot == slot_) return true;
  const auto is_to_slot = [slot](const auto& line) { return line.second.slot == slot; };
  if (std::ranges::any_of(lines_, is_to_slot)) return true;
  // If the peer cannot be watched, its end is only noticed later, by timeouts.
  if (!try_allocating([&] { reserve_line(); })) return true;
  os::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return true;
  const os::UnixAddress name = name_of(slot);
  // EAGAIN means that the backlog is full: the peer is alive but not watched.
  if (::connect(socket.get(), name.get(), name.bytes) != 0) return errno != ECONNREFUSED;
  if (!peer_is_own_user(socket.get())) return true;
  if (::send(socket.get(), &slot_, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return errno != EPIPE;
  add(std::move(socket), OpenedBy::Us, slot);
  return true;
}

void Lifelines::limit_unidentified() {
  const auto is_unidentified = [](const auto& line) { return line.second.slot == 0; };
  const auto first = std::ranges::find_if(lines_, is_unidentified);
  if (std::ranges::count_if(lines_, is_unidentified) < static_cast<ptrdiff_t>(kMaxUnidentified))
    return;
  std::vector<uint8_t> none;
  end(first, none);
}

void Lifelines::accept_connections(std::vector<uint8_t>& departed) {
  for (int i = 0; i < UnixListener::kAcceptsPerTurn; ++i) {
    // Without memory for the line, the connection stays in the backlog: closing it would tell the
    // peer that this process has ended.
    if (!try_allocating([&] { reserve_line(); })) return;
    os::UniqueFd socket;
    const UnixListener::Accepted accepted = listener_.accept_next(socket);
    if (accepted == UnixListener::Accepted::None) return;
    if (accepted == UnixListener::Accepted::OtherUser) continue;
    limit_unidentified();
    const auto line = add(std::move(socket), OpenedBy::Peer, 0);
    if (line != lines_.end()) read(line, departed);
  }
}

// A process connects to another one once. A second connection that claims a living peer's slot is
// not from that peer.
bool Lifelines::is_duplicate(const Line& line, uint8_t slot, std::vector<uint8_t>& departed) {
  const auto other = std::ranges::find_if(lines_, [&](const auto& l) {
    return &l.second != &line && l.second.opened_by == OpenedBy::Peer && l.second.slot == slot;
  });
  if (other == lines_.end()) return false;
  uint8_t byte = 0;
  if (read_byte(other->first, MSG_PEEK, byte) != ReadResult::End) return true;
  end(other, departed);  // another process has the slot now
  return false;
}

void Lifelines::end(Lines::iterator line, std::vector<uint8_t>& departed) {
  if (line->second.slot != 0) departed.push_back(line->second.slot);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, line->first, nullptr);
  lines_.erase(line);
}

void Lifelines::read(Lines::iterator line, std::vector<uint8_t>& departed) {
  uint8_t byte = 0;
  const ReadResult result = read_byte(line->first, 0, byte);
  if (result == ReadResult::Nothing) return;
  if (result == ReadResult::Byte && line->second.slot != 0) return;
  if (result == ReadResult::Byte && !is_duplicate(line->second, byte, departed)) {
    line->second.slot = byte;
    return;
  }
  end(line, departed);
}

std::vector<uint8_t> Lifelines::take_departed() {
  std::vector<uint8_t> departed;
  // The vector has capacity for all lines that one call can end, so that no ended line is lost for
  // want of memory.
  departed.reserve(2 * (kEventsPerCall + UnixListener::kAcceptsPerTurn));
  reserve_line();
  epoll_event ready[kEventsPerCall];
  const int n = ::epoll_wait(epoll_.get(), ready, kEventsPerCall, 0);
  accept_connections(departed);
  for (int i = 0; i < n; ++i) {
    const auto line = lines_.find(ready[i].data.fd);
    if (line != lines_.end()) read(line, departed);
  }
  return departed;
}

}  // namespace verbena::host
