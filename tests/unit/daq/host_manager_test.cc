// The connection manager of a host, by itself and with that of a board.
#include "daq/host_manager.h"

#include <gtest/gtest.h>

#include "daq/board_manager.h"
#include "tests/unit/daq/daq_support.h"

namespace verbena::daq {
namespace {

const QpInfo kLocal{.qpn = 0x010011, .rkey = 9, .address = 0x4000, .ip = kHostIp};

class HostManagerTest : public testing::Test {
 protected:
  HostManagerTest() { make_board({}); }
  void make_board(const Quirks& quirks, uint32_t queue_pairs = 8) {
    board_.emplace(
        BoardManager::Config{.ip = kBoardIp, .queue_pairs = queue_pairs, .quirks = quirks});
  }
  void to_board() {
    while (const auto out = host_.next_outgoing()) {
      EXPECT_EQ(out->ip, kBoardIp);
      EXPECT_EQ(out->port, kBoardPort);
      board_->on_datagram(out->message.store(), now_);
    }
  }
  void to_host() {
    while (const auto out = board_->next_outgoing()) {
      EXPECT_EQ(out->port, kHostPort);
      host_.on_datagram(out->message.store(), kBoardIp, now_);
    }
  }
  void exchange() {
    to_board();
    to_host();
  }
  void expire() {
    now_ = host_.next_deadline();
    host_.on_deadline(now_);
  }
  HostEvent event() {
    return host_.next_event().value_or(HostEvent{.outcome = HostOutcome::Unmatched, .id = 999999});
  }
  uint32_t open(const QpInfo& local = kLocal) {
    return host_.open(kBoardIp, kBoardPort, local, now_);
  }

  HostManager host_{{.ip = kHostIp}};
  std::optional<BoardManager> board_;
  Instant now_{0};
};

TEST_F(HostManagerTest, OpensTransmitsAndCloses) {
  const uint32_t id = open();
  exchange();
  const HostEvent opened = event();
  EXPECT_EQ(opened.outcome, HostOutcome::Opened);
  EXPECT_EQ(opened.id, id);
  EXPECT_EQ(opened.peer.qpn, 256u);
  EXPECT_EQ(opened.peer.ip, kBoardIp);
  EXPECT_EQ(host_.next_deadline(), kNever);

  host_.transmit(id, {.valid = true, .start = true, .length = 64, .count = 1});
  to_board();
  EXPECT_EQ(board_->next_event()->outcome, BoardOutcome::Opened);
  EXPECT_EQ(board_->next_event()->outcome, BoardOutcome::TransmitStart);

  host_.close(id, now_);
  exchange();
  EXPECT_EQ(event().outcome, HostOutcome::Closed);
  EXPECT_EQ(board_->state_of(256), BoardQpState::Reset);
  EXPECT_EQ(host_.connections(), 0u);
}

TEST_F(HostManagerTest, PassiveSideReportsTransmitCommands) {
  const auto send_transmit = [&](uint32_t our_qpn, const Transmit& transmit) {
    Message m{.local = {.qpn = 256, .ip = kBoardIp}, .remote = {.qpn = our_qpn}};
    m.listening_port = kBoardPort;
    m.transmit = transmit;
    host_.on_datagram(m.store(), kBoardIp, now_);
    return event();
  };
  Message request{.info_valid = true, .request = Request::OpenQp};
  request.local = {.qpn = 256, .ip = kBoardIp};
  request.listening_port = kBoardPort;
  host_.on_datagram(request.store(), kBoardIp, now_);
  const uint32_t id = event().id;
  const Transmit command{.valid = true, .start = true, .length = 64, .count = 3};
  EXPECT_EQ(send_transmit(kLocal.qpn, command).outcome,
            HostOutcome::UnknownRequest);  // not open yet
  host_.accept(id, kLocal, now_);
  const HostEvent asked = send_transmit(kLocal.qpn, command);
  EXPECT_EQ(asked.outcome, HostOutcome::TransmitRequested);
  EXPECT_EQ(asked.id, id);
  EXPECT_EQ(asked.transmit, command);
  EXPECT_EQ(send_transmit(kLocal.qpn + 1, command).outcome, HostOutcome::UnknownRequest);
  EXPECT_EQ(send_transmit(kLocal.qpn, {.valid = true}).outcome,
            HostOutcome::UnknownRequest);  // no start
}

TEST_F(HostManagerTest, RetransmitsUntilItGetsAReply) {
  open();
  host_.next_outgoing();  // lost
  expire();
  to_board();
  board_->next_outgoing();  // the reply is lost, too
  expire();
  exchange();
  EXPECT_EQ(event().outcome, HostOutcome::Opened);
}

TEST_F(HostManagerTest, GivesUpAfterTenRequests) {
  const uint32_t id = open();
  size_t sent = 0;
  while (host_.next_deadline() != kNever) {
    while (host_.next_outgoing()) ++sent;
    expire();
  }
  EXPECT_EQ(sent, 10u);
  const HostEvent last = event();
  EXPECT_EQ(last.outcome, HostOutcome::OpenTimedOut);
  EXPECT_EQ(last.id, id);
  EXPECT_EQ(host_.connections(), 0u);
}

TEST_F(HostManagerTest, ClosesASecondQueuePairForOneRequest) {
  make_board({.opens_twice = true});
  open();
  to_board();
  expire();  // the reply is slow
  to_board();
  to_host();
  EXPECT_EQ(event().outcome, HostOutcome::Opened);
  EXPECT_EQ(event().outcome, HostOutcome::SurplusClosed);
  to_board();
  EXPECT_EQ(board_->state_of(256), BoardQpState::Rts);
  EXPECT_EQ(board_->state_of(257), BoardQpState::Reset);
}

TEST_F(HostManagerTest, ReportsThatTheBoardIsFull) {
  make_board({}, 1);
  open();
  QpInfo other = kLocal;
  other.qpn = 5;
  open(other);
  exchange();
  EXPECT_EQ(event().outcome, HostOutcome::Opened);
  const HostEvent refused = event();
  EXPECT_EQ(refused.outcome, HostOutcome::OpenRefused);
  EXPECT_EQ(refused.ack, Ack::NoQp);
}

TEST_F(HostManagerTest, DistinguishesQueuePairsAndBoards) {
  const uint32_t first = open();
  QpInfo second_qp = kLocal;
  second_qp.qpn = 0x010012;
  const uint32_t second = open(second_qp);
  exchange();
  const HostEvent a = event(), b = event();
  EXPECT_EQ(a.id, first);
  EXPECT_EQ(b.id, second);
  EXPECT_NE(a.peer.qpn, b.peer.qpn);
  // A reply of another board with the same QPN does not match.
  Message forged{
      .info_valid = true, .request = Request::CloseQp, .ack_valid = true, .ack = Ack::Ack};
  forged.remote = kLocal;
  host_.on_datagram(forged.store(), 0x7F000003, now_);
  EXPECT_EQ(event().outcome, HostOutcome::Unmatched);
  EXPECT_EQ(host_.connections(), 2u);
}

TEST_F(HostManagerTest, ClosesAQueuePairThatARestartedBoardDoesNotKnow) {
  const uint32_t id = open();
  exchange();
  event();
  make_board({});  // the board restarts
  host_.close(id, now_);
  exchange();
  const HostEvent closed = event();
  EXPECT_EQ(closed.outcome, HostOutcome::Closed);
  EXPECT_EQ(closed.ack, Ack::Error);
}

TEST_F(HostManagerTest, CloseBeforeTheReplyClosesTheOpenedQueuePair) {
  const uint32_t id = open();
  to_board();
  host_.close(id, now_);
  EXPECT_EQ(host_.connections(), 1u);  // the board may have opened a queue pair
  to_host();
  exchange();
  EXPECT_EQ(board_->state_of(256), BoardQpState::Reset);
  EXPECT_EQ(event().outcome, HostOutcome::Closed);
  EXPECT_EQ(host_.connections(), 0u);
}

TEST_F(HostManagerTest, CloseBeforeARefusalEndsTheConnection) {
  make_board({}, 0);
  host_.close(open(), now_);
  exchange();
  EXPECT_EQ(event().outcome, HostOutcome::Closed);
  EXPECT_EQ(host_.connections(), 0u);
}

TEST_F(HostManagerTest, CloseWithoutAnyReplyEndsTheConnection) {
  host_.close(open(), now_);
  while (host_.next_deadline() != kNever) expire();
  EXPECT_EQ(event().outcome, HostOutcome::CloseTimedOut);
  EXPECT_EQ(host_.connections(), 0u);
}

// --------------------------------------------------------------------------------------- passive

TEST_F(HostManagerTest, AcceptsAMaster) {
  board_->request_open(kHostIp, kHostPort, now_);
  to_host();
  const HostEvent asked = event();
  EXPECT_EQ(asked.outcome, HostOutcome::OpenRequested);
  EXPECT_EQ(asked.peer.qpn, 256u);
  host_.accept(asked.id, kLocal, now_);
  to_board();
  EXPECT_EQ(board_->state_of(256), BoardQpState::Rts);
  EXPECT_EQ(board_->peer_of(256), kLocal);

  board_->request_close(256, now_);
  to_host();
  const HostEvent closed = event();
  EXPECT_EQ(closed.outcome, HostOutcome::PeerClosed);
  EXPECT_EQ(closed.id, asked.id);
  to_board();
  EXPECT_EQ(board_->state_of(256), BoardQpState::Reset);
}

TEST_F(HostManagerTest, RefusesAMaster) {
  board_->request_open(kHostIp, kHostPort, now_);
  to_host();
  host_.refuse(event().id, Ack::NoQp);
  to_board();
  EXPECT_EQ(board_->state_of(256), BoardQpState::Reset);
  EXPECT_EQ(host_.connections(), 0u);
}

TEST_F(HostManagerTest, RepliesToADuplicateAtMostEvery100Ms) {
  board_->request_open(kHostIp, kHostPort, now_);
  const Message request = board_->next_outgoing()->message;
  host_.on_datagram(request.store(), kBoardIp, now_);
  const HostEvent asked = event();
  host_.on_datagram(request.store(), kBoardIp, now_);  // before accept() or refuse()
  EXPECT_FALSE(host_.next_event());
  host_.accept(asked.id, kLocal, now_);
  EXPECT_TRUE(host_.next_outgoing());
  host_.on_datagram(request.store(), kBoardIp, now_ + milliseconds(99));
  EXPECT_FALSE(host_.next_outgoing());
  host_.on_datagram(request.store(), kBoardIp, now_ + milliseconds(100));
  EXPECT_EQ(host_.next_outgoing()->message.ack, Ack::Ack);
  EXPECT_EQ(host_.connections(), 1u);
}

TEST_F(HostManagerTest, TreatsAMuchLaterOpenOfTheSameQpnAsARestart) {
  board_->request_open(kHostIp, kHostPort, now_);
  const Message request = board_->next_outgoing()->message;
  host_.on_datagram(request.store(), kBoardIp, now_);
  const HostEvent asked = event();
  host_.accept(asked.id, kLocal, now_);
  host_.on_datagram(request.store(), kBoardIp, now_ + seconds(2));
  const HostEvent restarted = event();
  EXPECT_EQ(restarted.outcome, HostOutcome::PeerRestarted);
  EXPECT_EQ(restarted.id, asked.id);
  EXPECT_EQ(event().outcome, HostOutcome::OpenRequested);
  EXPECT_EQ(host_.connections(), 1u);
}

TEST_F(HostManagerTest, RejectsCloseOfUnknownConnections) {
  Message close{.info_valid = true, .request = Request::CloseQp};
  close.local = {.qpn = 256, .ip = kBoardIp};
  close.remote = kLocal;
  close.listening_port = kBoardPort;
  host_.on_datagram(close.store(), kBoardIp, now_);
  EXPECT_EQ(event().outcome, HostOutcome::CloseOfUnknown);
  EXPECT_EQ(host_.next_outgoing()->message.ack, Ack::NoQp);

  board_->request_open(kHostIp, kHostPort, now_);
  to_host();
  host_.accept(event().id, kLocal, now_);
  to_board();
  close.remote.qpn = 0x999;
  host_.on_datagram(close.store(), kBoardIp, now_);
  EXPECT_EQ(event().outcome, HostOutcome::CloseMismatch);
  EXPECT_EQ(host_.next_outgoing()->message.ack, Ack::Nak);
  EXPECT_EQ(host_.connections(), 1u);
}

TEST_F(HostManagerTest, ReportsInvalidMessagesAndSendsNoReply) {
  host_.on_datagram(std::array<std::byte, 65>{}, kBoardIp, now_);
  EXPECT_EQ(event().outcome, HostOutcome::WrongLength);
  host_.on_datagram(Message{}.store(), kBoardIp, now_);
  EXPECT_EQ(event().outcome, HostOutcome::UnknownRequest);
  host_.on_datagram(Message{.info_valid = true, .request = Request::ModifyQpRts}.store(), kBoardIp,
                    now_);
  EXPECT_EQ(event().outcome, HostOutcome::UnknownRequest);
  EXPECT_FALSE(host_.next_outgoing());
}

}  // namespace
}  // namespace verbena::daq
