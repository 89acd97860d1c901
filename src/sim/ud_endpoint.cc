// Unicast and multicast datagrams.
#include "sim/ud_endpoint.h"

#include <algorithm>

#include "base/bytes.h"

namespace verbena::sim {

using core::SendOp;
using core::WcOpcode;
using core::WcStatus;

namespace {

WorkloadShape ud_shape(WorkloadShape shape, ReceivePool* shared) {
  shape.requests = std::min(shape.requests, 150u);
  shape.qp.type = core::QpType::Ud;
  shape.qp.srq = shared != nullptr ? shared->srq() : nullptr;
  return shape;
}

}  // namespace

UdEndpoint::UdEndpoint(World& world, Host& host, core::CompletionQueue& cq,
                       const WorkloadShape& shape, Report& report, UdMembership& membership,
                       ReceivePool* shared)
    : Actor(world, host, ud_shape(shape, shared), report),
      membership_(membership),
      index_(static_cast<uint32_t>(membership.members.size())),
      qp_(host.create_qp(cq, cq, shape_.qp)),
      messages_(world, host, qp_, shape_, wire::bytes_of(membership.mtu), index_),
      own_receives_(
          shared != nullptr
              ? nullptr
              : std::make_unique<ReceivePool>(
                    world, host, pool_shape(shape_.qp.depth, shape_.qp.sges, membership.mtu))),
      receives_(shared != nullptr ? *shared : *own_receives_) {
  if (own_receives_) own_receives_->serve(qp_);
  membership.members.push_back(this);
  open_for_datagrams(host, qp_, membership.qkey, static_cast<uint32_t>(prng().below(1 << 24)));
  for (uint32_t group = 0; group < UdMembership::kGroups; ++group) {
    joined_[group] = prng().below(2) == 0;
    if (joined_[group] && !host.engine().attach(qp_, Network::gid_of_group(group)).ok()) {
      problem("attaching was refused");
    }
  }
}

std::string UdEndpoint::describe() const {
  return "host " + std::to_string(host_.id()) + " UD " + std::to_string(index_) + ": posted " +
         std::to_string(posted_) + " of " + std::to_string(shape_.requests) + ", receives " +
         std::to_string(receives_.waiting());
}

void UdEndpoint::fill_receives() {
  if (qp_.state() == core::QpState::Error) return;
  const std::string what = receives_.fill();
  if (!what.empty()) problem(what);
}

void UdEndpoint::work() {
  if (!prng().chance(shape_.late_receives)) fill_receives();
  const uint64_t burst = prng().below(6);
  for (uint64_t i = 0; i < burst && posted_ < shape_.requests && messages_.has_room(); ++i) {
    const bool to_group = prng().below(4) == 0;
    const uint64_t to = to_group ? kFirstGroup + prng().below(UdMembership::kGroups)
                                 : prng().below(membership_.members.size());
    const bool forbidden = prng().below(8) == 0;
    post_one(static_cast<uint32_t>(to), forbidden);
  }
}

void UdEndpoint::post_one(uint32_t to, bool forbidden) {
  constexpr uint32_t kOwnQkey = 0x80000000;  // a Q_Key with this bit selects the sender's own
  const bool immediate = prng().below(2) == 0;
  NumberedMessage p{
      .op = immediate ? SendOp::SendImm : SendOp::Send, .to = to, .forbidden = forbidden};
  const uint32_t max_bytes = wire::bytes_of(membership_.mtu);
  const uint64_t wanted = prng().below(4) == 0 ? max_bytes : prng().below(max_bytes + 1);
  p.length =
      std::max(static_cast<uint32_t>(wanted), immediate ? 0 : NumberedMessages::kNumberBytes);

  core::AddressHandle handle;
  handle.pd = 1;
  handle.mtu = membership_.mtu;
  core::SendRequest s;
  if (to >= kFirstGroup) {
    handle.address.destination = Network::gid_of_group(to - kFirstGroup);
    handle.path = World::path_to_group(to - kFirstGroup);
    s.datagram.qpn = wire::kMulticastQpn;
  } else {
    UdEndpoint& target = *membership_.members[to];
    handle.address.destination = target.host_.gid();
    handle.path = World::path_to(target.host_.id());
    s.datagram.qpn = target.qp_.qpn();
  }
  s.datagram.handle = &handle;
  s.datagram.qkey = forbidden ? membership_.qkey ^ 1u << prng().below(31) : membership_.qkey;
  if (!forbidden && prng().below(4) == 0) s.datagram.qkey = kOwnQkey;
  ++posted_;
  if (!messages_.post(p, s, posted_ >= shape_.requests)) problem("post_send refused");
}

// Sends one message to each group and one to the next member.
bool UdEndpoint::send_last_message() {
  if (!last_messages_begin_) last_messages_begin_ = messages_.all().size();
  const auto sent_so_far = static_cast<uint32_t>(messages_.all().size() - *last_messages_begin_);
  if (sent_so_far > UdMembership::kGroups) return false;
  for (UdEndpoint* e : membership_.members) e->fill_receives();
  const auto next = static_cast<uint32_t>((index_ + 1) % membership_.members.size());
  post_one(sent_so_far < UdMembership::kGroups ? kFirstGroup + sent_so_far : next, false);
  return true;
}

void UdEndpoint::on_completion(const core::Completion& c) {
  if (c.opcode >= WcOpcode::Receive) return on_receive(c);
  const std::string what = messages_.completed(c);
  if (!what.empty()) problem(what);
  if (c.status != WcStatus::Success) problem("a request failed");
}

bool UdEndpoint::is_for_us(uint32_t sender, const NumberedMessage& p) const {
  if (p.to < kFirstGroup) return p.to == index_;
  return joined_[p.to - kFirstGroup] && sender != index_;  // the sender does not receive its own
}

void UdEndpoint::on_receive(const core::Completion& c) {
  Receive r;
  const std::string what = receives_.complete(c, &r);
  if (!what.empty()) return problem(what);
  if (c.status == WcStatus::Flushed && stopped_) return;
  if (c.status != WcStatus::Success) return problem("a receive failed");
  if (c.byte_count < kHeaderBytes || c.byte_count > receives_.shape().bytes) {
    return problem("impossible length");
  }
  const Bytes got = receives_.read(r, c.byte_count);
  const auto message = std::span(got).subspan(kHeaderBytes);
  const uint32_t number = NumberedMessages::number_in(c, message);
  const uint32_t from = NumberedMessages::sender_in(number);
  NumberedMessage* p = from < membership_.members.size()
                           ? membership_.members[from]->messages_.find(number)
                           : nullptr;
  if (p == nullptr) return problem("a datagram was received that was not sent");
  UdEndpoint& sender = *membership_.members[from];
  if (!is_for_us(from, *p)) problem("a datagram for another queue pair");
  if (p->forbidden) problem("a datagram with a wrong Q_Key was received");
  const uint8_t flags =
      core::kWcGrh | (NumberedMessages::has_immediate(p->op) ? core::kWcWithImmediate : 0);
  if (c.opcode != WcOpcode::Receive || (c.flags & core::kWcFlags) != flags)
    problem("wrong opcode or flags");
  if (c.source_qpn != sender.qp_.qpn()) problem("a datagram from the wrong source");
  if (!std::ranges::equal(message, sender.messages_.content(number))) {
    problem("a datagram was received incomplete");
  }
  if (!std::ranges::equal(std::span(got).first(kHeaderBytes), expected_header(sender, *p))) {
    problem("wrong addressing in front of a datagram");
  }
  if (++arrived_[number] > (shape_.duplicates ? 2 : 1))
    problem("a datagram was received too often");
}

// 20 bytes of zero and an IPv4 header, deliberately implemented a second time.
Bytes UdEndpoint::expected_header(const UdEndpoint& sender, const NumberedMessage& p) const {
  constexpr uint32_t kIpUdpBthDethIcrc = 20 + 8 + 12 + 8 + 4;
  const wire::Gid to = p.to < kFirstGroup ? host_.gid() : Network::gid_of_group(p.to - kFirstGroup);
  const wire::RxMeta meta = Host::addressing(sender.host_, to);
  const uint32_t total =
      kIpUdpBthDethIcrc + (NumberedMessages::has_immediate(p.op) ? 4 : 0) + (p.length + 3) / 4 * 4;
  Bytes area(kHeaderBytes);
  std::byte* ip = area.data() + 20;
  store_u8(ip, 0x45);
  store_u8(ip + 1, meta.traffic_class);
  store_be16(ip + 2, static_cast<uint16_t>(total));
  store_be16(ip + 6, 0x4000);  // not to be fragmented
  store_u8(ip + 8, meta.hop_limit);
  store_u8(ip + 9, 17);  // UDP
  std::copy_n(meta.source.bytes.begin() + 12, 4, ip + 12);
  std::copy_n(meta.destination.bytes.begin() + 12, 4, ip + 16);
  uint32_t sum = 0;
  for (int i = 0; i < 20; i += 2) sum += load_be16(ip + i);
  sum = (sum & 0xFFFF) + (sum >> 16);
  store_be16(ip + 10, static_cast<uint16_t>(~(sum + (sum >> 16))));
  return area;
}

uint64_t UdEndpoint::missing() const {
  uint64_t count = 0;
  for (uint32_t from = 0; from < membership_.members.size(); ++from) {
    const auto& sent = membership_.members[from]->messages_.all();
    for (uint32_t i = 0; i < sent.size(); ++i) {
      count += is_for_us(from, sent[i]) && !sent[i].forbidden && !arrived_.contains(from << 24 | i);
    }
  }
  return count;
}

void UdEndpoint::check() {
  for (uint32_t from = 0; from < membership_.members.size(); ++from) {
    const UdEndpoint& sender = *membership_.members[from];
    for (size_t i = *sender.last_messages_begin_; i < sender.messages_.all().size(); ++i) {
      const auto number = from << 24 | static_cast<uint32_t>(i);
      if (is_for_us(from, sender.messages_.all()[i]) && !arrived_.contains(number)) {
        problem("a last message was not received");
      }
    }
  }
  if (qp_.state() != core::QpState::Rts) problem("not in RTS");
}

void UdEndpoint::stop() {
  stopped_ = true;
  host_.to_error(qp_);
}

}  // namespace verbena::sim
