// What each message means to a host.
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
  ask(c, Request::OpenQp, now);
  return id;
}

void HostManager::close(uint32_t id, Instant now) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& c = found->second;
  if (c.state == State::Asked) {
    connections_.erase(found);
    return;
  }
  if (c.state == State::Opening) {
    c.unwanted = true;  // on_answer closes what was opened
    return;
  }
  if (c.state == State::Closing) return;
  c.state = State::Closing;
  ask(c, Request::CloseQp, now);
}

void HostManager::transmit(uint32_t id, const Transmit& command) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Message m = message_about(found->second);
  m.info_valid = true;
  m.transmit = command;
  outgoing_.push_back({found->second.ip, found->second.port, m});
}

void HostManager::ask(Connection& c, Request request, Instant now) {
  c.question = message_about(c);
  c.question.info_valid = true;
  c.question.request = request;
  c.left = config_.attempts - 1;
  c.deadline = now + config_.timeout;
  outgoing_.push_back({c.ip, c.port, c.question});
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
  if (found == connections_.end() || found->second.state != State::Asked) return;
  Connection& c = found->second;
  c.state = State::Open;
  c.local = local;
  c.since = c.answered_at = now;
  answer(c.question, local, Ack::Ack, c.ip);
}

void HostManager::refuse(uint32_t id, Ack ack) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.state != State::Asked) return;
  answer(found->second.question, {.ip = config_.ip}, ack, found->second.ip);
  connections_.erase(found);
}

// ------------------------------------------------------------------------------------------------

void HostManager::on_datagram(std::span<const std::byte> bytes, uint32_t source_ip, Instant now) {
  const auto in = Message::load(bytes);
  if (!in) return tell(HostOutcome::WrongLength, 0, source_ip, {});
  if (in->ack_valid) return on_answer(*in, source_ip, now);
  if (in->info_valid && in->request == Request::OpenQp) return on_open(*in, source_ip, now);
  if (in->info_valid && in->request == Request::CloseQp) return on_close(*in, source_ip);
  if (in->request == Request::Null && in->transmit.valid) return on_transmit(*in, source_ip);
  tell(HostOutcome::UnknownRequest, 0, source_ip, in->local);
}

void HostManager::on_transmit(const Message& in, uint32_t source_ip) {
  const auto about = std::ranges::find_if(connections_, [&](const auto& entry) {
    const Connection& c = entry.second;
    return c.ip == source_ip && c.local.qpn == in.remote.qpn && c.state == State::Open;
  });
  if (about == connections_.end() || !in.transmit.start)
    return tell(HostOutcome::UnknownRequest, 0, source_ip, in.local);
  tell(HostOutcome::TransmitAsked, about->first, source_ip, in.local);
  events_.back().transmit = in.transmit;
}

void HostManager::on_answer(const Message& in, uint32_t source_ip, Instant now) {
  const auto about = std::ranges::find_if(connections_, [&](const auto& entry) {
    const Connection& c = entry.second;
    return c.ip == source_ip && c.local.qpn == in.remote.qpn;
  });
  const bool known = about != connections_.end();
  if (in.request == Request::OpenQp && in.ack == Ack::Ack &&
      (!known ||
       (about->second.state != State::Opening && about->second.peer.qpn != in.local.qpn))) {
    // Asked twice, a board may open two; nobody would ever close the second.
    Message m{.info_valid = true, .request = Request::CloseQp};
    m.local = in.remote;
    m.remote = in.local;
    m.listening_port = config_.port;
    outgoing_.push_back({source_ip, in.listening_port, m});
    return tell(HostOutcome::SurplusClosed, known ? about->first : 0, source_ip, in.local);
  }
  if (!known || in.request != about->second.question.request ||
      (about->second.state != State::Opening && about->second.state != State::Closing)) {
    return tell(HostOutcome::Unmatched, 0, source_ip, in.local, in.ack);
  }
  const uint32_t id = about->first;
  Connection& c = about->second;
  if (c.state == State::Opening && in.ack == Ack::Ack) {
    c.state = State::Open;
    c.peer = in.local;
    c.deadline = kNever;
    if (c.unwanted) return close(id, now);
    return tell(HostOutcome::Opened, id, source_ip, in.local, in.ack);
  }
  // A refusal of a close says that there is nothing to close.
  const bool closing = c.state == State::Closing || c.unwanted;
  const QpInfo peer = c.peer;
  connections_.erase(about);
  tell(closing ? HostOutcome::Closed : HostOutcome::OpenRefused, id, source_ip, peer, in.ack);
}

void HostManager::on_open(const Message& in, uint32_t source_ip, Instant now) {
  const auto before = std::ranges::find_if(connections_, [&](const auto& entry) {
    return entry.second.ip == source_ip && entry.second.peer.qpn == in.local.qpn &&
           entry.second.state != State::Opening;
  });
  if (before != connections_.end()) {
    Connection& c = before->second;
    if (c.state == State::Asked) return;  // the owner has not decided
    const bool same = c.question.local == in.local && c.question.request == Request::OpenQp;
    if (same && now < c.since + config_.restart_after) {
      if (now < c.answered_at + config_.answer_pause) return;
      c.answered_at = now;
      return answer(in, c.local, Ack::Ack, source_ip);
    }
    const uint32_t id = before->first;
    connections_.erase(before);
    tell(HostOutcome::PeerRestarted, id, source_ip, in.local);
  }
  const uint32_t id = ++last_id_;
  Connection& c = connections_[id];
  c.state = State::Asked;
  c.ip = source_ip;
  c.port = in.listening_port;
  c.peer = in.local;
  c.question = in;
  tell(HostOutcome::Asked, id, source_ip, in.local);
}

void HostManager::on_close(const Message& in, uint32_t source_ip) {
  const auto found = std::ranges::find_if(connections_, [&](const auto& entry) {
    return entry.second.ip == source_ip && entry.second.peer.qpn == in.local.qpn &&
           entry.second.state != State::Opening;
  });
  QpInfo ours = in.remote;
  ours.ip = config_.ip;
  if (found == connections_.end()) {
    answer(in, ours, Ack::NoQp, source_ip);
    return tell(HostOutcome::CloseOfUnknown, 0, source_ip, in.local);
  }
  if (found->second.local.qpn != in.remote.qpn) {
    answer(in, ours, Ack::Nak, source_ip);
    return tell(HostOutcome::CloseMismatch, found->first, source_ip, in.local);
  }
  answer(in, found->second.local, Ack::Ack, source_ip);
  const uint32_t id = found->first;
  connections_.erase(found);
  tell(HostOutcome::PeerClosed, id, source_ip, in.local);
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
    if (c.left > 0) {
      --c.left;
      c.deadline = now + config_.timeout;
      outgoing_.push_back({c.ip, c.port, c.question});
      ++entry;
      continue;
    }
    const bool opening = c.state == State::Opening && !c.unwanted;
    tell(opening ? HostOutcome::OpenUnanswered : HostOutcome::CloseUnanswered, id, c.ip, c.peer);
    entry = connections_.erase(entry);
  }
}

// ------------------------------------------------------------------------------------------------

void HostManager::answer(const Message& in, const QpInfo& local, Ack ack, uint32_t ip) {
  Message m{.info_valid = true, .request = in.request, .ack_valid = true, .ack = ack};
  m.local = local;
  m.remote = in.local;
  m.listening_port = config_.port;
  outgoing_.push_back({ip, in.listening_port, m});
}

void HostManager::tell(HostOutcome outcome, uint32_t id, uint32_t ip, const QpInfo& peer, Ack ack) {
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
    case HostOutcome::OpenUnanswered:
      return "does not answer";
    case HostOutcome::Asked:
      return "asks for a connection";
    case HostOutcome::PeerClosed:
      return "closed the connection";
    case HostOutcome::PeerRestarted:
      return "has restarted: the connection before is over";
    case HostOutcome::TransmitAsked:
      return "asks for data";
    case HostOutcome::Closed:
      return "disconnected";
    case HostOutcome::CloseUnanswered:
      return "does not answer, taken as disconnected";
    case HostOutcome::SurplusClosed:
      return "opened a second queue pair for one question: closed again";
    case HostOutcome::WrongLength:
      return "sent a datagram that is not 64 bytes: dropped";
    case HostOutcome::Unmatched:
      return "answers what was not asked: dropped";
    case HostOutcome::CloseOfUnknown:
      return "closes a queue pair that is not connected: NO_QP";
    case HostOutcome::CloseMismatch:
      return "closes a queue pair that is somebody else's: NAK";
    case HostOutcome::UnknownRequest:
      return "asks for what hosts do not do: dropped";
  }
  return "";
}

}  // namespace verbena::daq
