// The connection manager of a board: its replies, their destination, and when it stays silent.
#include "daq/board_manager.h"

#include <gtest/gtest.h>

#include "tests/unit/daq/daq_support.h"

namespace verbena::daq {
namespace {

Message request(Request what, uint32_t host_qpn, uint32_t board_qpn = 0, uint32_t ip = kHostIp) {
  Message m{.info_valid = true, .request = what};
  m.local = {.qpn = host_qpn, .psn = 7, .rkey = 0xABCD, .address = 0x1000, .ip = ip};
  m.remote.qpn = board_qpn;
  m.listening_port = kHostPort;
  return m;
}

class BoardManagerTest : public testing::Test {
 protected:
  void make(const Quirks& quirks = {}, uint32_t queue_pairs = 8) {
    board_.emplace(
        BoardManager::Config{.ip = kBoardIp, .queue_pairs = queue_pairs, .quirks = quirks});
  }
  // The board's reply to a message, or nullopt. Sets `outcome_` to the outcome that it reports.
  std::optional<Outgoing> ask(const Message& m) {
    board_->on_datagram(m.store(), now_);
    const auto event = board_->next_event();
    EXPECT_TRUE(event.has_value());
    if (event) outcome_ = event->outcome;
    auto reply = board_->next_outgoing();
    EXPECT_FALSE(board_->next_outgoing().has_value());
    return reply;
  }
  uint32_t open(uint32_t host_qpn) {
    return ask(request(Request::OpenQp, host_qpn))->message.local.qpn;
  }
  Ack ack_of(const Message& m) {
    const auto reply = ask(m);
    return reply ? reply->message.ack : Ack::Null;
  }

  std::optional<BoardManager> board_;
  BoardOutcome outcome_{};
  Instant now_{0};
};

TEST_F(BoardManagerTest, OpenUsesTheFirstQpnAndEchoesTheHost) {
  make();
  const Message in = request(Request::OpenQp, 0x55);
  const auto reply = ask(in);
  ASSERT_TRUE(reply);
  EXPECT_EQ(outcome_, BoardOutcome::Opened);
  EXPECT_EQ(reply->ip, kHostIp);
  EXPECT_EQ(reply->port, kHostPort);
  EXPECT_EQ(reply->message.store()[0], std::byte{0x33});
  EXPECT_EQ(reply->message.local, (QpInfo{.qpn = 256, .ip = kBoardIp}));
  EXPECT_EQ(reply->message.remote, in.local);
  EXPECT_EQ(reply->message.listening_port, kBoardPort);
  EXPECT_EQ(board_->state_of(256), BoardQpState::Rts);
  EXPECT_EQ(board_->peer_of(256), in.local);
}

TEST_F(BoardManagerTest, RepliesToThePortThatTheRequestNames) {
  make();
  Message in = request(Request::OpenQp, 1);
  in.listening_port = 999;
  EXPECT_EQ(ask(in)->port, 999);
}

TEST_F(BoardManagerTest, AClosedQpnIsReusedLast) {
  make({}, 2);
  EXPECT_EQ(open(1), 256u);
  EXPECT_EQ(ack_of(request(Request::CloseQp, 1, 256)), Ack::Ack);
  EXPECT_EQ(outcome_, BoardOutcome::Closed);
  EXPECT_EQ(open(2), 257u);
  EXPECT_EQ(open(3), 256u);
}

TEST_F(BoardManagerTest, RepliesNoQpWhenAllQueuePairsAreOpen) {
  make({}, 2);
  open(1);
  open(2);
  EXPECT_EQ(ack_of(request(Request::OpenQp, 3)), Ack::NoQp);
  EXPECT_EQ(outcome_, BoardOutcome::Full);
}

TEST_F(BoardManagerTest, ADuplicateRequestGetsTheSameReply) {
  make();
  EXPECT_EQ(open(1), 256u);
  EXPECT_EQ(open(1), 256u);
  EXPECT_EQ(outcome_, BoardOutcome::DuplicateOpen);
  EXPECT_EQ(open(2), 257u);
}

TEST_F(BoardManagerTest, RejectsCloseOfAQueuePairThatIsNotOpen) {
  make();
  EXPECT_EQ(ack_of(request(Request::CloseQp, 1, 256)), Ack::Error);
  EXPECT_EQ(outcome_, BoardOutcome::CloseOfClosed);
  for (const uint32_t qpn : {0u, 1u, 255u, 264u, 0xFFFFFFu}) {
    EXPECT_EQ(ack_of(request(Request::CloseQp, 1, qpn)), Ack::Nak) << qpn;
    EXPECT_EQ(outcome_, BoardOutcome::CloseOutOfRange);
  }
}

TEST_F(BoardManagerTest, AFailedQueuePairCanBeClosed) {
  make();
  open(1);
  board_->fail(256, now_);
  EXPECT_EQ(board_->state_of(256), BoardQpState::Error);
  EXPECT_EQ(ack_of(request(Request::CloseQp, 1, 256)), Ack::Ack);
  EXPECT_EQ(board_->state_of(256), BoardQpState::Reset);
}

TEST_F(BoardManagerTest, IgnoresInvalidMessagesAsTheFirmwareDoes) {
  make();
  board_->on_datagram(std::array<std::byte, 63>{}, now_);
  EXPECT_EQ(board_->next_event()->outcome, BoardOutcome::WrongLength);
  board_->on_datagram(std::array<std::byte, 1500>{}, now_);
  EXPECT_EQ(board_->next_event()->outcome, BoardOutcome::WrongLength);
  EXPECT_FALSE(board_->next_outgoing());

  EXPECT_FALSE(ask(Message{}));
  EXPECT_EQ(outcome_, BoardOutcome::NoRequest);
  for (const int code : {2, 5, 6, 7}) {
    EXPECT_FALSE(ask(request(static_cast<Request>(code), 1))) << code;
    EXPECT_EQ(outcome_, BoardOutcome::UnknownRequest) << code;
  }
  Message unsolicited = request(Request::OpenQp, 1);
  unsolicited.ack_valid = true;
  unsolicited.ack = Ack::Ack;
  EXPECT_FALSE(ask(unsolicited));
  EXPECT_EQ(outcome_, BoardOutcome::UnexpectedResponse);
}

TEST_F(BoardManagerTest, AcceptsTransmitCommandsOfOpenQueuePairs) {
  make();
  Message m;
  m.remote.qpn = 256;
  m.transmit = {.valid = true, .start = true, .length = 64, .count = 3};
  EXPECT_FALSE(ask(m));
  EXPECT_EQ(outcome_, BoardOutcome::TransmitIgnored);
  open(1);
  EXPECT_FALSE(ask(m));  // flag byte 0x00
  EXPECT_EQ(outcome_, BoardOutcome::TransmitStart);
  m.info_valid = true;  // and 0x01
  EXPECT_FALSE(ask(m));
  EXPECT_EQ(outcome_, BoardOutcome::TransmitStart);
  m.remote.qpn = 300;
  EXPECT_FALSE(ask(m));
  EXPECT_EQ(outcome_, BoardOutcome::TransmitIgnored);
}

TEST_F(BoardManagerTest, AcknowledgesModifyWithoutQuirks) {
  make();
  open(1);
  EXPECT_EQ(ack_of(request(Request::ModifyQpRts, 1, 256)), Ack::Ack);
  EXPECT_EQ(ack_of(request(Request::ModifyQpRts, 1, 257)), Ack::Error);
  EXPECT_EQ(ack_of(request(Request::ModifyQpRts, 1, 9)), Ack::Nak);
  EXPECT_EQ(open(2), 257u);
}

TEST_F(BoardManagerTest, QuirkModifyBlocksOpensUntilAClose) {
  make({.modify_wedges = true, .leaks_qpns = true}, 3);
  open(1);
  EXPECT_EQ(ack_of(request(Request::ModifyQpRts, 1, 256)), Ack::Error);
  EXPECT_EQ(ack_of(request(Request::OpenQp, 2)), Ack::Error);
  EXPECT_EQ(outcome_, BoardOutcome::OpenFailed);
  EXPECT_EQ(ack_of(request(Request::CloseQp, 1, 256)), Ack::Ack);
  EXPECT_EQ(open(3), 258u);  // 257 leaked
  EXPECT_EQ(open(4), 256u);
  EXPECT_EQ(ack_of(request(Request::OpenQp, 5)), Ack::NoQp);
}

TEST_F(BoardManagerTest, QuirkModifyHangsPermanently) {
  make({.modify_hangs = true});
  EXPECT_FALSE(ask(request(Request::ModifyQpRts, 1, 12)));
  EXPECT_EQ(outcome_, BoardOutcome::Hung);
  EXPECT_FALSE(ask(request(Request::OpenQp, 1)));
  EXPECT_EQ(outcome_, BoardOutcome::Hung);
}

TEST_F(BoardManagerTest, QuirkLosesARequestAtTheInstantOfAClose) {
  make({.loses_pulses = true});
  open(1);
  open(2);
  EXPECT_EQ(ack_of(request(Request::CloseQp, 1, 256)), Ack::Ack);
  now_ = now_ + nanoseconds(1);
  EXPECT_EQ(open(3), 258u);
  board_->fail(258, now_);
  EXPECT_FALSE(ask(request(Request::CloseQp, 2, 257)));
  EXPECT_EQ(outcome_, BoardOutcome::Hung);
  now_ = now_ + seconds(1);
  EXPECT_FALSE(ask(request(Request::OpenQp, 4)));
}

TEST_F(BoardManagerTest, QuirkStaleRepliesGoToThePreviousHost) {
  make({.stale_answers = true}, 1);
  const auto first = ask(request(Request::OpenQp, 1));
  const auto refusal = ask(request(Request::OpenQp, 2, 0, 0x0A000001));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->ip, kHostIp);
  EXPECT_EQ(refusal->message.ack, Ack::NoQp);
  EXPECT_EQ(refusal->message.remote, first->message.remote);
}

TEST_F(BoardManagerTest, QuirkOpensTwice) {
  make({.opens_twice = true});
  EXPECT_EQ(open(1), 256u);
  EXPECT_EQ(open(1), 257u);
}

TEST_F(BoardManagerTest, EveryQuirkHasAName) {
  Quirks quirks;
  for (const QuirkName& quirk : quirk_names()) {
    EXPECT_FALSE(quirks.*quirk.member) << quirk.name;
    quirks.*quirk.member = true;
  }
  EXPECT_EQ(quirk_names().size(), sizeof(Quirks) / sizeof(bool));
}

// ------------------------------------------------------------------------------------ as a master

Message reply_to(const Outgoing& sent_request, Ack ack) {
  Message m{
      .info_valid = true, .request = sent_request.message.request, .ack_valid = true, .ack = ack};
  m.local = {.qpn = 0x77, .psn = 5, .rkey = 3, .address = 0x2000, .ip = sent_request.ip};
  m.remote = sent_request.message.local;
  return m;
}

TEST_F(BoardManagerTest, MasterOpensAndCloses) {
  make();
  ASSERT_TRUE(board_->request_open(kHostIp, kHostPort, now_));
  EXPECT_FALSE(board_->request_open(kHostIp, kHostPort, now_));  // one exchange at a time
  const Outgoing open = *board_->next_outgoing();
  EXPECT_EQ(open.port, kHostPort);
  EXPECT_EQ(open.message.store()[0], std::byte{0x03});
  EXPECT_EQ(open.message.local.qpn, 256u);
  EXPECT_FALSE(ask(reply_to(open, Ack::Ack)));
  EXPECT_EQ(outcome_, BoardOutcome::PeerAccepted);
  EXPECT_EQ(board_->peer_of(256).qpn, 0x77u);
  EXPECT_EQ(board_->state_of(256), BoardQpState::Rts);
  EXPECT_EQ(board_->next_deadline(), kNever);

  ASSERT_TRUE(board_->request_close(256, now_));
  const Outgoing close = *board_->next_outgoing();
  EXPECT_EQ(close.message.remote.qpn, 0x77u);
  EXPECT_FALSE(ask(reply_to(close, Ack::NoQp)));  // treated as ACK
  EXPECT_EQ(outcome_, BoardOutcome::PeerClosed);
  EXPECT_EQ(board_->state_of(256), BoardQpState::Reset);
}

TEST_F(BoardManagerTest, MasterRetransmitsOnceThenReleasesTheQpn) {
  make({}, 1);
  board_->request_open(kHostIp, kHostPort, now_);
  const Outgoing first = *board_->next_outgoing();
  now_ = board_->next_deadline();
  board_->on_deadline(now_);
  EXPECT_EQ(board_->next_outgoing()->message, first.message);
  now_ = board_->next_deadline();
  board_->on_deadline(now_);
  EXPECT_FALSE(board_->next_outgoing());
  EXPECT_EQ(board_->next_event()->outcome, BoardOutcome::PeerSilent);
  EXPECT_EQ(board_->next_deadline(), kNever);
  EXPECT_TRUE(board_->request_open(kHostIp, kHostPort, now_));
}

TEST_F(BoardManagerTest, MasterReleasesTheQpnIfRefused) {
  for (const Ack ack : {Ack::NoQp, Ack::Nak, Ack::Error}) {
    make({}, 1);
    board_->request_open(kHostIp, kHostPort, now_);
    ask(reply_to(*board_->next_outgoing(), ack));
    EXPECT_EQ(outcome_, BoardOutcome::PeerRefused);
    EXPECT_EQ(board_->state_of(256), BoardQpState::Reset);
  }
  make({.no_qp_is_ack = true});
  board_->request_open(kHostIp, kHostPort, now_);
  ask(reply_to(*board_->next_outgoing(), Ack::NoQp));
  EXPECT_EQ(outcome_, BoardOutcome::PeerAccepted);
}

TEST_F(BoardManagerTest, MasterChecksTheAddressesOfAReply) {
  make();
  board_->request_open(kHostIp, kHostPort, now_);
  Message forged = reply_to(*board_->next_outgoing(), Ack::Ack);
  forged.local.ip = 0x0A000001;
  ask(forged);
  EXPECT_EQ(outcome_, BoardOutcome::UnexpectedResponse);
  EXPECT_TRUE(board_->exchange_pending());
}

TEST_F(BoardManagerTest, BothCloseAtOnce) {
  make({}, 2);
  board_->request_open(kHostIp, kHostPort, now_);
  ask(reply_to(*board_->next_outgoing(), Ack::Ack));
  board_->request_close(256, now_);
  const Outgoing close = *board_->next_outgoing();
  EXPECT_EQ(ack_of(request(Request::CloseQp, 0x77, 256)), Ack::Ack);
  ask(reply_to(close, Ack::NoQp));
  EXPECT_EQ(outcome_, BoardOutcome::UnexpectedResponse);
  EXPECT_EQ(open(1), 257u);
  EXPECT_EQ(open(2), 256u);
  EXPECT_EQ(ack_of(request(Request::OpenQp, 3)), Ack::NoQp);  // no QPN is in the pool twice
}

}  // namespace
}  // namespace verbena::daq
