// One connected socket for each pair of processes; whoever called first says its slot in one byte.
#include "datapath/udp/lifelines.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "datapath/same_user.h"
#include "datapath/unix_address.h"

namespace verbena::datapath {
namespace {

constexpr int kVersion = 1;
constexpr int kBacklog = 255;  // no more processes than slots
constexpr int kEventsPerCall = 64;

UniqueFd open_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Calls `function`, bind() or connect(), with the abstract name of a slot's lifeline.
template <typename Function>
bool at_name_of(uint8_t slot, int fd, Function function) {
  const UnixAddress name = UnixAddress::abstract("verbena/life/%d/%u", kVersion, slot);
  return function(fd, name.get(), name.bytes) == 0;
}

}  // namespace

Lifelines::Lifelines(uint8_t slot)
    : slot_(slot), epoll_(::epoll_create1(EPOLL_CLOEXEC)), listener_(open_socket()) {
  const bool bound = listener_.valid() && at_name_of(slot, listener_.get(), ::bind) &&
                     ::listen(listener_.get(), kBacklog) == 0;
  epoll_event event{EPOLLIN, {.fd = listener_.get()}};
  if (!bound || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0) {
    listener_.reset();  // then nobody can watch us
  }
}

void Lifelines::add(UniqueFd socket, uint8_t slot) {
  const int fd = socket.get();
  epoll_event event{EPOLLIN, {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return;
  lines_[fd] = {std::move(socket), slot};
}

bool Lifelines::watch(uint8_t slot) {
  if (slot == slot_) return true;
  const auto leads_there = [slot](const auto& line) { return line.second.slot == slot; };
  if (std::ranges::any_of(lines_, leads_there)) return true;
  UniqueFd socket = open_socket();
  if (!socket.valid()) return true;
  // Where its backlog is full (EAGAIN), it lives and is not watched.
  if (!at_name_of(slot, socket.get(), ::connect)) return errno != ECONNREFUSED;
  if (!peer_is_own_user(socket.get())) return true;
  if (::send(socket.get(), &slot_, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return errno != EPIPE;
  add(std::move(socket), slot);
  return true;
}

void Lifelines::accept_callers() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    if (peer_is_own_user(socket.get())) add(std::move(socket), 0);
  }
}

std::vector<uint8_t> Lifelines::take_departed() {
  std::vector<uint8_t> departed;
  epoll_event ready[kEventsPerCall];
  const int n = ::epoll_wait(epoll_.get(), ready, kEventsPerCall, 0);
  for (int i = 0; i < n; ++i) {
    const int fd = ready[i].data.fd;
    if (fd == listener_.get()) {
      accept_callers();
      continue;
    }
    const auto line = lines_.find(fd);
    if (line == lines_.end()) continue;
    uint8_t said = 0;
    const ssize_t bytes = ::recv(fd, &said, 1, MSG_DONTWAIT);
    if (bytes == 1 && line->second.slot == 0) line->second.slot = said;
    if (bytes == 1 || (bytes < 0 && (errno == EAGAIN || errno == EINTR))) continue;
    if (line->second.slot != 0) departed.push_back(line->second.slot);
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    lines_.erase(line);
  }
  return departed;
}

}  // namespace verbena::datapath
