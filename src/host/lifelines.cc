// One connected socket for each pair of processes; whoever called first says its slot in one byte.
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

// From the other end.
enum class Heard : uint8_t { Nothing, Byte, End };
Heard hear(int fd, int flags, uint8_t& said) {
  const ssize_t bytes = ::recv(fd, &said, 1, MSG_DONTWAIT | flags);
  if (bytes == 1) return Heard::Byte;
  return bytes < 0 && (errno == EAGAIN || errno == EINTR) ? Heard::Nothing : Heard::End;
}

}  // namespace

// Where there is no listener, nobody can watch us.
Lifelines::Lifelines(uint8_t slot)
    : slot_(slot), epoll_(::epoll_create1(EPOLL_CLOEXEC)), listener_(name_of(slot), epoll_.get()) {}

Lifelines::Lines::iterator Lifelines::add(os::UniqueFd socket, CalledBy called_by, uint8_t slot) {
  const int fd = socket.get();
  epoll_event event{EPOLLIN, {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return lines_.end();
  auto node = spare_.extract(spare_.begin());
  node.key() = fd;
  node.mapped() = Line{std::move(socket), called_by, slot};
  return lines_.insert(std::move(node)).position;
}

void Lifelines::reserve_line() {
  if (spare_.empty()) spare_.try_emplace(-1);
}

bool Lifelines::watch(uint8_t slot) {
  if (slot == slot_) return true;
  const auto leads_there = [slot](const auto& line) { return line.second.slot == slot; };
  if (std::ranges::any_of(lines_, leads_there)) return true;
  // A peer that is not watched costs only that its end is noticed later.
  if (!try_allocating([&] { reserve_line(); })) return true;
  os::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return true;
  const os::UnixAddress name = name_of(slot);
  // Where its backlog is full (EAGAIN), it lives and is not watched.
  if (::connect(socket.get(), name.get(), name.bytes) != 0) return errno != ECONNREFUSED;
  if (!peer_is_own_user(socket.get())) return true;
  if (::send(socket.get(), &slot_, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return errno != EPIPE;
  add(std::move(socket), CalledBy::Us, slot);
  return true;
}

void Lifelines::make_room_for_silent() {
  const auto is_silent = [](const auto& line) { return line.second.slot == 0; };
  const auto first = std::ranges::find_if(lines_, is_silent);
  if (std::ranges::count_if(lines_, is_silent) < static_cast<ptrdiff_t>(kMostSilent)) return;
  std::vector<uint8_t> none;
  end(first, none);
}

void Lifelines::accept_callers(std::vector<uint8_t>& departed) {
  for (int i = 0; i < UnixListener::kCallersPerTurn; ++i) {
    // A caller that is hung up on takes us for dead: without memory for its line it waits.
    if (!try_allocating([&] { reserve_line(); })) return;
    os::UniqueFd socket;
    const UnixListener::Caller caller = listener_.next(socket);
    if (caller == UnixListener::Caller::Nobody) return;
    if (caller == UnixListener::Caller::Stranger) continue;
    make_room_for_silent();
    const auto line = add(std::move(socket), CalledBy::Peer, 0);
    if (line != lines_.end()) read(line, departed);
  }
}

// A process calls another one once. Whoever says a slot that a living caller has said is not it.
bool Lifelines::is_double(const Line& line, uint8_t slot, std::vector<uint8_t>& departed) {
  const auto other = std::ranges::find_if(lines_, [&](const auto& l) {
    return &l.second != &line && l.second.called_by == CalledBy::Peer && l.second.slot == slot;
  });
  if (other == lines_.end()) return false;
  uint8_t said = 0;
  if (hear(other->first, MSG_PEEK, said) != Heard::End) return true;
  end(other, departed);  // the slot is another process's by now
  return false;
}

void Lifelines::end(Lines::iterator line, std::vector<uint8_t>& departed) {
  if (line->second.slot != 0) departed.push_back(line->second.slot);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, line->first, nullptr);
  lines_.erase(line);
}

void Lifelines::read(Lines::iterator line, std::vector<uint8_t>& departed) {
  uint8_t said = 0;
  const Heard heard = hear(line->first, 0, said);
  if (heard == Heard::Nothing) return;
  if (heard == Heard::Byte && line->second.slot != 0) return;
  if (heard == Heard::Byte && !is_double(line->second, said, departed)) {
    line->second.slot = said;
    return;
  }
  end(line, departed);
}

std::vector<uint8_t> Lifelines::take_departed() {
  std::vector<uint8_t> departed;
  // Room for all of one call: a line that ends is told, or stays.
  departed.reserve(2 * (kEventsPerCall + UnixListener::kCallersPerTurn));
  reserve_line();
  epoll_event ready[kEventsPerCall];
  const int n = ::epoll_wait(epoll_.get(), ready, kEventsPerCall, 0);
  accept_callers(departed);
  for (int i = 0; i < n; ++i) {
    const auto line = lines_.find(ready[i].data.fd);
    if (line != lines_.end()) read(line, departed);
  }
  return departed;
}

}  // namespace verbena::host
