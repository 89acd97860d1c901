// HostManager: requests and responses of the connection manager on a host.
#include "daq/host_manager.h"

#include <algorithm>

namespace verbena::daq {

uint32_t HostManager::open(uint32_t ip, uint16_t port, const QpInfo& local, Instant now) {
  const uint32_t id = ++last_id_;
  Connection& c = connections_[id];
  c.ip = ip;
  c.port = port;
  c.local = local;
  c.peer.ip = ip;
  send_request(c, Request::OpenQp, now);
  return id;
}

void HostManager::close(uint32_t id, Instant now) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& c = found->second;
  if (c.state == State::Requested) {
    connections_.erase(found);
    return;
  }
  if (c.state == State::Opening) {
    c.close_when_open = true;  // on_response() closes it
    return;
  }
  if (c.state == State::Closing) return;
  c.state = State::Closing;
  send_request(c, Request::CloseQp, now);
}

void HostManager::transmit(uint32_t id, const Transmit& command) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Message m = message_about(found->second);
  m.info_valid = true;
  m.transmit = command;
  outgoing_.push_back({found->second.ip, found->second.port, m});
}

void HostManager::send_request(Connection& c, Request request, Instant now) {
  c.request = message_about(c);
  c.request.info_valid = true;
  c.request.request = request;
  c.retransmits_left = config_.attempts - 1;
  c.deadline = now + config_.timeout;
  outgoing_.push_back({c.ip, c.port, c.request});
}

Message HostManager::message_about(const Connection& c) const {
  Message m;
  m.local = c.local;
  m.remote = c.peer;
  m.listening_port = config_.port;
  return m;
}

void HostManager::accept(uint32_t id, const QpInfo& local, Instant now) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.state != State::Requested) return;
  Connection& c = found->second;
  c.state = State::Open;
  c.local = local;
  c.accepted_at = c.responded_at = now;
  respond(c.request, local, Ack::Ack, c.ip);
}

void HostManager::refuse(uint32_t id, Ack ack) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.state != State::Requested) return;
  respond(found->second.request, {.ip = config_.ip}, ack, found->second.ip);
  connections_.erase(found);
}

// ------------------------------------------------------------------------------------------------

void HostManager::on_datagram(std::span<const std::byte> bytes, uint32_t source_ip, Instant now) {
  const auto in = Message::load(bytes);
  if (!in) return report(HostOutcome::WrongLength, 0, source_ip, {});
  if (in->ack_valid) return on_response(*in, source_ip, now);
  if (in->info_valid && in->request == Request::OpenQp) return on_open(*in, source_ip, now);
  if (in->info_valid && in->request == Request::CloseQp) return on_close(*in, source_ip);
  if (in->request == Request::Null && in->transmit.valid) return on_transmit(*in, source_ip);
  report(HostOutcome::UnknownRequest, 0, source_ip, in->local);
}

void HostManager::on_transmit(const Message& in, uint32_t source_ip) {
  const auto about = std::ranges::find_if(connections_, [&](const auto& entry) {
    const Connection& c = entry.second;
    return c.ip == source_ip && c.local.qpn == in.remote.qpn && c.state == State::Open;
  });
  if (about == connections_.end() || !in.transmit.start)
    return report(HostOutcome::UnknownRequest, 0, source_ip, in.local);
  report(HostOutcome::TransmitRequested, about->first, source_ip, in.local);
  events_.back().transmit = in.transmit;
}

void HostManager::on_response(const Message& in, uint32_t source_ip, Instant now) {
  const auto about = std::ranges::find_if(connections_, [&](const auto& entry) {
    const Connection& c = entry.second;
    return c.ip == source_ip && c.local.qpn == in.remote.qpn;
  });
  const bool known = about != connections_.end();
  if (in.request == Request::OpenQp && in.ack == Ack::Ack &&
      (!known ||
       (about->second.state != State::Opening && about->second.peer.qpn != in.local.qpn))) {
    // A board may open two queue pairs for a retransmitted OPEN_QP. Close the second: it has no
    // owner.
    Message m{.info_valid = true, .request = Request::CloseQp};
    m.local = in.remote;
    m.remote = in.local;
    m.listening_port = config_.port;
    outgoing_.push_back({source_ip, in.listening_port, m});
    return report(HostOutcome::SurplusClosed, known ? about->first : 0, source_ip, in.local);
  }
  if (!known || in.request != about->second.request.request ||
      (about->second.state != State::Opening && about->second.state != State::Closing)) {
    return report(HostOutcome::Unmatched, 0, source_ip, in.local, in.ack);
  }
  const uint32_t id = about->first;
  Connection& c = about->second;
  if (c.state == State::Opening && in.ack == Ack::Ack) {
    c.state = State::Open;
    c.peer = in.local;
    c.deadline = kNever;
    if (c.close_when_open) return close(id, now);
    return report(HostOutcome::Opened, id, source_ip, in.local, in.ack);
  }
  // A rejected CLOSE_QP means that the board has no such connection, so it counts as closed.
  const bool closing = c.state == State::Closing || c.close_when_open;
  const QpInfo peer = c.peer;
  connections_.erase(about);
  report(closing ? HostOutcome::Closed : HostOutcome::OpenRefused, id, source_ip, peer, in.ack);
}

void HostManager::on_open(const Message& in, uint32_t source_ip, Instant now) {
  const auto before = std::ranges::find_if(connections_, [&](const auto& entry) {
    return entry.second.ip == source_ip && entry.second.peer.qpn == in.local.qpn &&
           entry.second.state != State::Opening;
  });
  if (before != connections_.end()) {
    Connection& c = before->second;
    if (c.state == State::Requested) return;  // the owner has not decided
    const bool same = c.request.local == in.local && c.request.request == Request::OpenQp;
    if (same && now < c.accepted_at + config_.restart_after) {
      if (now < c.responded_at + config_.response_interval) return;
      c.responded_at = now;
      return respond(in, c.local, Ack::Ack, source_ip);
    }
    const uint32_t id = before->first;
    connections_.erase(before);
    report(HostOutcome::PeerRestarted, id, source_ip, in.local);
  }
  const uint32_t id = ++last_id_;
  Connection& c = connections_[id];
  c.state = State::Requested;
  c.ip = source_ip;
  c.port = in.listening_port;
  c.peer = in.local;
  c.request = in;
  report(HostOutcome::OpenRequested, id, source_ip, in.local);
}

void HostManager::on_close(const Message& in, uint32_t source_ip) {
  const auto found = std::ranges::find_if(connections_, [&](const auto& entry) {
    return entry.second.ip == source_ip && entry.second.peer.qpn == in.local.qpn &&
           entry.second.state != State::Opening;
  });
  QpInfo ours = in.remote;
  ours.ip = config_.ip;
  if (found == connections_.end()) {
    respond(in, ours, Ack::NoQp, source_ip);
    return report(HostOutcome::CloseOfUnknown, 0, source_ip, in.local);
  }
  if (found->second.local.qpn != in.remote.qpn) {
    respond(in, ours, Ack::Nak, source_ip);
    return report(HostOutcome::CloseMismatch, found->first, source_ip, in.local);
  }
  respond(in, found->second.local, Ack::Ack, source_ip);
  const uint32_t id = found->first;
  connections_.erase(found);
  report(HostOutcome::PeerClosed, id, source_ip, in.local);
}

// ----------------------------------------------------------------------------------------- time

Instant HostManager::next_deadline() const {
  Instant next = kNever;
  for (const auto& [id, c] : connections_) next = std::min(next, c.deadline);
  return next;
}

void HostManager::on_deadline(Instant now) {
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    auto& [id, c] = *entry;
    if (c.deadline > now) {
      ++entry;
      continue;
    }
    if (c.retransmits_left > 0) {
      --c.retransmits_left;
      c.deadline = now + config_.timeout;
      outgoing_.push_back({c.ip, c.port, c.request});
      ++entry;
      continue;
    }
    const bool opening = c.state == State::Opening && !c.close_when_open;
    report(opening ? HostOutcome::OpenTimedOut : HostOutcome::CloseTimedOut, id, c.ip, c.peer);
    entry = connections_.erase(entry);
  }
}

// ------------------------------------------------------------------------------------------------

void HostManager::respond(const Message& in, const QpInfo& local, Ack ack, uint32_t ip) {
  Message m{.info_valid = true, .request = in.request, .ack_valid = true, .ack = ack};
  m.local = local;
  m.remote = in.local;
  m.listening_port = config_.port;
  outgoing_.push_back({ip, in.listening_port, m});
}

void HostManager::report(HostOutcome outcome, uint32_t id, uint32_t ip, const QpInfo& peer,
                         Ack ack) {
  events_.push_back({.outcome = outcome, .id = id, .peer_ip = ip, .peer = peer, .ack = ack});
}

std::optional<Outgoing> HostManager::next_outgoing() {
  if (outgoing_.empty()) return std::nullopt;
  const Outgoing out = outgoing_.front();
  outgoing_.pop_front();
  return out;
}

std::optional<HostEvent> HostManager::next_event() {
  if (events_.empty()) return std::nullopt;
  const HostEvent event = events_.front();
  events_.pop_front();
  return event;
}

const char* text_of(HostOutcome outcome) {
  switch (outcome) {
    case HostOutcome::Opened:
      return "connected";
    case HostOutcome::OpenRefused:
      return "refused";
    case HostOutcome::OpenTimedOut:
      return "does not respond";
    case HostOutcome::OpenRequested:
      return "requests a connection";
    case HostOutcome::PeerClosed:
      return "closed the connection";
    case HostOutcome::PeerRestarted:
      return "has restarted: the previous connection has ended";
    case HostOutcome::TransmitRequested:
      return "requests data";
    case HostOutcome::Closed:
      return "disconnected";
    case HostOutcome::CloseTimedOut:
      return "does not respond, counts as disconnected";
    case HostOutcome::SurplusClosed:
      return "opened a second queue pair for one request: closed again";
    case HostOutcome::WrongLength:
      return "sent a datagram that is not 64 bytes: dropped";
    case HostOutcome::Unmatched:
      return "sent a response without a request: dropped";
    case HostOutcome::CloseOfUnknown:
      return "closes a queue pair that is not connected: NO_QP";
    case HostOutcome::CloseMismatch:
      return "closes a queue pair of another connection: NAK";
    case HostOutcome::UnknownRequest:
      return "sent a request that hosts do not support: dropped";
  }
  return "";
}

}  // namespace verbena::daq
