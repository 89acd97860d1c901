// The simulator's checkers detect errors. Packets are changed between the hosts so that no engine
// detects it, as if an engine were broken; the checker for that error must report it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "sim/receive_pool.h"
#include "sim/seed_run.h"
#include "wire/packet.h"

namespace verbena::sim {
namespace {

using wire::Position;
using wire::Transport;
using wire::Verb;

std::optional<wire::Packet> parse(const Bytes& bytes) {
  wire::ParseError why{};
  return wire::Packet::parse(bytes, &why);
}

// The same payload after changed headers. The opcode stays.
Bytes with_headers(const wire::Packet& p) {
  Bytes out(wire::kMaxHeaderBytes);
  out.resize(wire::store_headers(p, out.data()));
  out.insert(out.end(), p.payload.begin(), p.payload.end());
  out.resize(out.size() + p.bth.pad);
  return out;
}

// `edit` may change the headers of each packet.
TamperRule editing(std::function<void(wire::Packet&)> edit) {
  return [edit = std::move(edit)](HostId, HostId, const Bytes& bytes) -> std::vector<Bytes> {
    auto p = parse(bytes);
    edit(*p);
    return {with_headers(*p)};
  };
}

// Changes the last byte of the payload in packets that `match` accepts.
TamperRule corrupting(std::function<bool(const wire::Packet&)> match) {
  return [match = std::move(match)](HostId, HostId, Bytes bytes) -> std::vector<Bytes> {
    const auto p = parse(bytes);
    if (match(*p) && !p->payload.empty()) bytes[bytes.size() - 1 - p->bth.pad] ^= std::byte{1};
    return {std::move(bytes)};
  };
}

TamperRule losing(std::function<bool(HostId to, const wire::Packet&)> match) {
  return [match = std::move(match)](HostId, HostId to, Bytes bytes) -> std::vector<Bytes> {
    if (match(to, *parse(bytes))) return {};
    return {std::move(bytes)};
  };
}

TamperRule repeating(std::function<bool(const wire::Packet&)> match) {
  return [match = std::move(match)](HostId, HostId, const Bytes& bytes) -> std::vector<Bytes> {
    const size_t copies = match(*parse(bytes)) ? 3 : 1;  // the network itself may deliver two
    return std::vector<Bytes>(copies, bytes);
  };
}

// At least one seed must report the error: not every seed has such traffic. Each gets a new rule.
using Run = std::function<RunResult(uint64_t seed, TamperRule)>;
void expect_detected(
    const std::string& text, const std::function<TamperRule()>& make_rule,
    const Run& run = [](uint64_t seed, TamperRule rule) {
      return run_workload(seed, false, std::move(rule));
    }) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const RunResult r = run(seed, make_rule());
    const bool detected = std::ranges::any_of(
        r.problems, [&](const std::string& p) { return p.find(text) != std::string::npos; });
    if (detected) return;
  }
  FAIL() << "no checker reported: " << text;
}

bool is_uc(const wire::Packet& p) { return p.op.transport == Transport::Uc; }
bool is_ud(const wire::Packet& p) { return p.op.transport == Transport::Ud; }
bool is_only_send(const wire::Packet& p) {
  return p.op.verb == Verb::Send && p.op.position == Position::Only;
}

TEST(Checkers, DetectUcMessageWithAHole) {
  expect_detected("a message was received incomplete", [] {
    return [removed = std::map<uint32_t, uint32_t>()](HostId, HostId,
                                                      Bytes bytes) mutable -> std::vector<Bytes> {
      auto p = parse(bytes);
      if (!is_uc(*p)) return {std::move(bytes)};
      uint32_t& removed_before = removed[p->bth.destination.value()];
      if (p->op.verb == Verb::Send && p->op.position == Position::Middle) {
        ++removed_before;  // later PSNs are lowered, so that the receiver sees no gap
        return {};
      }
      p->bth.psn = p->bth.psn - removed_before;
      return {with_headers(*p)};
    };
  });
}

TEST(Checkers, DetectUcMessageWithWrongBytes) {
  expect_detected("a message was received incomplete", [] {
    return corrupting([](const auto& p) { return is_uc(p) && p.op.verb == Verb::Send; });
  });
}

TEST(Checkers, DetectDuplicateUcMessage) {
  expect_detected("a message was received too often", [] {
    return repeating([](const auto& p) { return is_uc(p) && is_only_send(p); });
  });
}

TEST(Checkers, DetectReorderedUcMessage) {
  expect_detected("a message was overtaken", [] {
    return [delayed = std::map<uint32_t, Bytes>()](HostId, HostId,
                                                   Bytes bytes) mutable -> std::vector<Bytes> {
      const auto p = parse(bytes);
      if (!is_uc(*p) || !is_only_send(*p)) return {std::move(bytes)};
      Bytes& before = delayed[p->bth.destination.value()];
      if (before.empty()) {
        before = std::move(bytes);
        return {};
      }
      return {std::move(bytes), std::exchange(before, {})};
    };
  });
}

TEST(Checkers, DetectUcWriteAtTheWrongAddress) {
  expect_detected("a WRITE left other bytes than were sent", [] {
    return editing([](wire::Packet& p) {
      if (is_uc(p) && p.op.has_reth && p.reth.length > 8) p.reth.address += 4;
    });
  });
}

TEST(Checkers, DetectLostUcMessageThatNoCounterReports) {
  expect_detected("a message got lost in the engine", [] {
    return losing([n = 0](HostId, const auto& p) mutable {
      return is_uc(p) && is_only_send(p) && ++n % 10 == 0;
    });
  });
}

TEST(Checkers, DetectLostLastUcMessage) {
  expect_detected("the last message was not received", [] {
    return losing([](HostId, const auto& p) { return is_uc(p) && p.op.verb == Verb::Send; });
  });
}

TEST(Checkers, DetectDatagramWithWrongBytes) {
  expect_detected("a datagram was received incomplete", [] { return corrupting(is_ud); });
}

TEST(Checkers, DetectDuplicateDatagram) {
  expect_detected("a datagram was received too often", [] { return repeating(is_ud); });
}

TEST(Checkers, DetectDatagramWithAWrongSource) {
  expect_detected("a datagram from the wrong source", [] {
    return editing([](wire::Packet& p) {
      if (is_ud(p)) p.deth.source = wire::Qpn(p.deth.source.value() ^ 1);
    });
  });
}

TEST(Checkers, DetectDatagramWithAWrongQkey) {
  expect_detected("a datagram with a wrong Q_Key was received", [] {
    return editing([seen = std::map<uint32_t, int>()](wire::Packet& p) mutable {
      if (!is_ud(p)) return;
      ++seen[p.deth.qkey];
      p.deth.qkey =
          std::ranges::max_element(seen, {}, [](const auto& s) { return s.second; })->first;
    });
  });
}

TEST(Checkers, DetectDatagramForAnotherQueuePair) {
  expect_detected("a datagram for another queue pair", [] {
    return editing([last = std::map<uint8_t, wire::Qpn>()](wire::Packet& p) mutable {
      if (!is_ud(p) || p.bth.destination == wire::kMulticastQpn) return;
      // Another queue pair of the same host.
      std::swap(p.bth.destination,
                last.try_emplace(p.bth.destination.slot(), p.bth.destination).first->second);
    });
  });
}

TEST(Checkers, DetectDatagramFromAnotherHost) {
  expect_detected("wrong addressing in front of a datagram", [] {
    struct Delayed {
      HostId from = 0;
      Bytes bytes;
    };
    return [delayed = std::map<HostId, Delayed>()](HostId from, HostId to,
                                                   Bytes bytes) mutable -> std::vector<Bytes> {
      const auto p = parse(bytes);
      if (!is_ud(*p) || p->bth.destination == wire::kMulticastQpn) return {std::move(bytes)};
      Delayed& h = delayed[to];
      if (h.bytes.empty()) {
        h = {from, std::move(bytes)};
        return {};
      }
      if (h.from == from) return {std::move(bytes)};
      return {std::move(bytes), std::exchange(h.bytes, {})};
    };
  });
}

TEST(Checkers, DetectMissingMulticastCopy) {
  expect_detected("a last message was not received", [] {
    return losing([](HostId to, const auto& p) {
      return to == 1 && p.bth.destination == wire::kMulticastQpn;
    });
  });
}

TEST(Checkers, DetectReliableMessageWithWrongBytes) {
  expect_detected("a message was received with other bytes", [] {
    return corrupting(
        [](const auto& p) { return p.op.transport == Transport::Rc && p.op.verb == Verb::Send; });
  });
}

TEST(Checkers, DetectReceiveOfAnotherXrcSrq) {
  expect_detected("a receive of a queue that the message did not name", [] {
    return editing([last = std::map<uint32_t, uint32_t>()](wire::Packet& p) mutable {
      if (!p.op.has_xrc_eth || !is_only_send(p)) return;
      std::swap(p.xrc_srqn, last.try_emplace(p.bth.destination.value(), p.xrc_srqn).first->second);
    });
  });
}

TEST(Checkers, DetectAtomicWriteOfAnotherValue) {
  expect_detected("returned other data than memory contained", [] {
    return corrupting([](const auto& p) { return p.op.verb == Verb::AtomicWrite; });
  });
}

TEST(Checkers, DetectFlushThatDoesNotPersist) {
  const auto make_rule = [] {
    return editing([](wire::Packet& p) {
      if (p.op.verb == Verb::Flush) p.flush.placement = wire::kPlaceGlobal;
    });
  };
  expect_detected("are not persistent", make_rule);
  expect_detected("a FLUSH was not executed exactly once", make_rule);
}

TEST(Checkers, DetectWriteOutsideTheWindow) {
  expect_detected("memory behind a window is wrong", [] {
    return editing([](wire::Packet& p) {
      const bool zero_based = p.op.verb == Verb::Write && p.op.has_reth && p.reth.address < 4096;
      if (zero_based) p.reth.address += 8;
    });
  });
}

// --- keys that are withdrawn while peers use them
// -------------------------------------------------

TEST(Checkers, DetectSuccessOfARequestWithAWithdrawnKey) {
  const auto make_rule = [] {
    // A withdrawn key is replaced by the latest one of its place.
    return editing([keys = std::map<uint32_t, std::vector<uint32_t>>()](wire::Packet& p) mutable {
      if (!p.op.has_reth) return;
      auto& known = keys[p.reth.rkey >> 8];
      if (std::ranges::find(known, p.reth.rkey) == known.end()) known.push_back(p.reth.rkey);
      p.reth.rkey = known.back();
    });
  };
  expect_detected("succeeded although its key was not valid", make_rule, run_withdrawn);
}

TEST(Checkers, DetectFailureOfARequestWithAValidKey) {
  const auto make_rule = [] {
    return editing([](wire::Packet& p) {
      if (p.op.verb == Verb::Write && p.op.has_reth) p.reth.rkey ^= 1;
    });
  };
  expect_detected("a request with a valid key failed", make_rule, run_withdrawn);
}

TEST(Checkers, DetectAWrongStatusAfterAWithdrawal) {
  const auto make_rule = [] {
    return losing([](HostId, const auto& p) {
      return p.op.has_aeth && p.aeth.kind == wire::AckKind::Nak &&
             p.aeth.value == static_cast<uint8_t>(wire::NakCode::RemoteAccess);
    });
  };
  expect_detected("wrong status", make_rule, run_withdrawn);
}

TEST(Checkers, DetectAWriteWhoseBytesDoNotReachTheBlockOfItsKey) {
  const auto make_rule = [] {
    return corrupting([](const auto& p) { return p.op.verb == Verb::Write; });
  };
  expect_detected("a WRITE succeeded but memory did not get its bytes", make_rule, run_withdrawn);
}

TEST(Checkers, DetectAReadOfOtherMemoryThanTheBlockOfItsKey) {
  const auto make_rule = [] {
    return corrupting([](const auto& p) { return p.op.verb == Verb::ReadResponse; });
  };
  expect_detected("a READ returned bytes that the memory did not have", make_rule, run_withdrawn);
}

TEST(Checkers, DetectWrongBytesInAReceiveThatLanesShare) {
  const auto make_rule = [] {
    return corrupting([](const auto& p) { return p.op.verb == Verb::Send; });
  };
  expect_detected("a message was received with other bytes", make_rule, run_withdrawn);
}

// The checks of shared receives, which do not depend on the peer.
class ReceivePoolTest : public testing::Test {
 protected:
  ReceivePoolTest() {
    pool_.serve(*host_.engine().create_srq({.pd = 1, .max_wr = 4, .max_sges = 4}));
    EXPECT_EQ(pool_.fill(), "");
  }
  std::string complete(uint64_t wr_id, uint32_t qpn) {
    Receive r;
    core::Completion c;
    c.wr_id = wr_id;
    c.qpn = wire::Qpn(qpn);
    return pool_.complete(c, &r);
  }

  World world_{1};
  Host& host_{world_.add_host()};
  ReceivePool pool_{world_, host_, {.depth = 4, .bytes = 64, .sges = 4}};
};

TEST_F(ReceivePoolTest, AcceptsReorderingBetweenQueuePairs) {
  EXPECT_EQ(complete(2, 20), "");
  EXPECT_EQ(complete(1, 10), "");
  EXPECT_EQ(complete(3, 10), "");
}

TEST_F(ReceivePoolTest, DetectsASecondCompletion) {
  EXPECT_EQ(complete(1, 10), "");
  EXPECT_NE(complete(1, 10), "");
  EXPECT_NE(complete(9, 10), "");
}

TEST_F(ReceivePoolTest, DetectsReorderingWithinAQueuePair) {
  EXPECT_EQ(complete(2, 10), "");
  EXPECT_NE(complete(1, 10), "");
}

TEST_F(ReceivePoolTest, DetectsALostReceive) {
  EXPECT_EQ(pool_.check_stopped(), "");
  const auto slot = pool_.srq()->consume().slot;  // it never completes
  EXPECT_NE(pool_.check_stopped(), "");
  pool_.srq()->release(slot);
  EXPECT_EQ(complete(1, 10), "");
  EXPECT_EQ(pool_.check_stopped(), "");
  EXPECT_EQ(complete(2, 10), "");
  EXPECT_NE(pool_.check_stopped(), "");
}

}  // namespace
}  // namespace verbena::sim
