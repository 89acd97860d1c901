// Peers that break the protocol: whatever they say, the rsocket stays within its memory, tells the
// application, and goes on living. And what a well-behaved one sees of us, message by message.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/rsocket/raw_peer_support.h"

namespace verbena::test {
namespace {

using rsocket::ConnectData;
using rsocket::Control;
using rsocket::Message;
using rsocket::Op;
using rsocket::RemoteBuffer;

// An rsocket that was called by a RawPeer.
class Hostile : public ::testing::Test {
 protected:
  void SetUp() override {
    listening_ = listener(&at_);
    peer_ = RawPeer::connect_well(at_);
    ASSERT_TRUE(peer_);
    socket_ = accepted(listening_);
  }

  // The connection is over, the socket says so once, and a fresh connection works.
  void expect_protocol_error() {
    char byte;
    EXPECT_ERRNO(rrecv(socket_.get(), &byte, 1, 0), EPROTO);
    EXPECT_EQ(rrecv(socket_.get(), &byte, 1, 0), 0);
    EXPECT_ERRNO(rsend(socket_.get(), &byte, 1, 0), ECONNRESET);
    EXPECT_TRUE(poll_one(socket_.get(), POLLIN) & POLLHUP);
    Rsocket client = stream_socket();
    connect_to(client, at_);
    const Rsocket server = accepted(listening_);
    EXPECT_EQ(rsend(client.get(), "x", 1, 0), 1);
    EXPECT_EQ(rrecv(server.get(), &byte, 1, 0), 1);
  }

  const ConnectData& told() { return peer_->told(); }

  Address at_;
  Rsocket listening_;
  std::unique_ptr<RawPeer> peer_;
  Rsocket socket_;
};

TEST_F(Hostile, SaysWhatItWroteAndIsBelieved) {
  const char text[] = "hello";
  ASSERT_TRUE(peer_->say(Message{Op::kData, 5}.encode(), told().first_buffer.address,
                         told().first_buffer.key, 5, reinterpret_cast<const std::byte*>(text)));
  char got[6] = {};
  EXPECT_EQ(rrecv(socket_.get(), got, 5, MSG_WAITALL), 5);
  EXPECT_STREQ(got, "hello");
}

// It has used all its credits, and the application looks elsewhere. What needs no credit must not
// wait for it.
TEST_F(Hostile, FindsReceivesForControlMessagesBesideItsCredits) {
  socket_.close();
  peer_ = RawPeer::connect_well(at_, {}, 0);
  ASSERT_TRUE(peer_);
  socket_ = accepted(listening_);
  for (unsigned i = 0; i < told().credits; ++i) ASSERT_TRUE(peer_->say(Op::kData, 1)) << i;
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(peer_->say(Op::kCredits, 64)) << i;
  ASSERT_TRUE(peer_->say(Op::kControl, static_cast<uint32_t>(Control::kShutdown)));
  ASSERT_TRUE(peer_->say(Op::kControl, static_cast<uint32_t>(Control::kDisconnect)));
  std::vector<uint8_t> bytes(told().credits);
  EXPECT_EQ(rrecv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL),
            static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(rrecv(socket_.get(), bytes.data(), bytes.size(), 0), 0);
}

TEST_F(Hostile, ClaimsMoreDataThanThereIsRoom) {
  peer_->say(Op::kData, told().first_buffer.length * 2 + 1);
  expect_protocol_error();
}

TEST_F(Hostile, ClaimsTheMostThatFitsIntoAMessage) {
  peer_->say(Op::kData, Message::kMaxValue);
  expect_protocol_error();
}

TEST_F(Hostile, FillsTheRingByClaimsAlone) {
  // It may claim what it did not write; that is its stream. But not more than it was given.
  ASSERT_TRUE(peer_->say(Op::kData, told().first_buffer.length));
  std::vector<uint8_t> bytes(told().first_buffer.length);
  EXPECT_EQ(rrecv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL),
            static_cast<ssize_t>(bytes.size()));
  for (int i = 0; i < 8; ++i) {
    if (!peer_->say(Op::kData, told().first_buffer.length)) break;
  }
  char byte;
  ssize_t got;
  while ((got = rrecv(socket_.get(), &byte, 1, 0)) > 0) {
  }
  EXPECT_EQ(got, -1);
  EXPECT_EQ(errno, EPROTO);
}

TEST_F(Hostile, GrantsCreditsBeyondItsQueue) {
  peer_->say(Op::kCredits, 5000);
  expect_protocol_error();
}

TEST_F(Hostile, TakesCreditsBack) {
  ASSERT_EQ(rsend(socket_.get(), "x", 1, 0), 1);
  peer_->say(Op::kCredits, 0);
  expect_protocol_error();
}

TEST_F(Hostile, GrantsMoreBuffersThanThereArePlaces) {
  const RemoteBuffer buffer{1, 2, 3};
  std::byte entries[2 * RemoteBuffer::kSize];
  buffer.store(entries, false);
  buffer.store(entries + RemoteBuffer::kSize, false);
  peer_->say(Message{Op::kCredits, 64}.encode(), told().buffer_list.address, told().buffer_list.key,
             sizeof entries, entries);
  expect_protocol_error();
}

TEST_F(Hostile, NamesOperationsThatAreNone) {
  for (const uint32_t op : {1u, 2u, 3u, 5u}) {
    SCOPED_TRACE(op);
    peer_->say(op << 29 | 1);
    expect_protocol_error();
    peer_.reset();
    socket_.close();
    SetUp();
  }
}

TEST_F(Hostile, SendsInsteadOfWriting) {
  peer_->send_without_immediate();
  expect_protocol_error();
}

TEST_F(Hostile, SpeaksAfterItSaidGoodbye) {
  ASSERT_TRUE(peer_->say(Op::kControl, static_cast<uint32_t>(Control::kShutdown)));
  char byte;
  EXPECT_EQ(rrecv(socket_.get(), &byte, 1, 0), 0);
  peer_->say(Op::kData, 1);
  while (!(poll_one(socket_.get(), POLLIN) & POLLHUP)) {
  }
  EXPECT_ERRNO(rrecv(socket_.get(), &byte, 1, 0), EPROTO);
}

// Writable it is all the time, and so nothing has to be looked for.
TEST_F(Hostile, SaysGoodbyeToOneWhoPollsForWriting) {
  EXPECT_EQ(poll_one(socket_.get(), POLLOUT), POLLOUT);
  ASSERT_TRUE(peer_->say(Op::kControl, static_cast<uint32_t>(Control::kDisconnect)));
  while (!(poll_one(socket_.get(), POLLOUT) & POLLHUP)) {
  }
}

TEST_F(Hostile, SaysControlMessagesThatAreNone) {
  ASSERT_TRUE(peer_->say(Op::kControl, 3));
  ASSERT_TRUE(peer_->say(Op::kControl, Message::kMaxValue));
  ASSERT_TRUE(peer_->say(Op::kControl, static_cast<uint32_t>(Control::kKeepalive)));
  ASSERT_TRUE(peer_->say(Op::kIomap, 12345));  // nothing to do with it
  EXPECT_EQ(poll_one(socket_.get(), POLLIN, 50), 0);
  EXPECT_EQ(rsend(socket_.get(), "x", 1, 0), 1);
}

TEST_F(Hostile, WritesBesideTheMemoryItWasGiven) {
  // The queue pair refuses it, and the connection ends.
  EXPECT_FALSE(peer_->say(Message{Op::kData, 5}.encode(), told().first_buffer.address + (8u << 20),
                          told().first_buffer.key, 5));
  char byte;
  EXPECT_ERRNO(rrecv(socket_.get(), &byte, 1, 0), ECONNRESET);
}

TEST_F(Hostile, FloodsWithEmptyMessages) {
  std::thread flood([&] {
    for (int i = 0; i < 3000; ++i) {
      if (!peer_->say(Op::kData, 0)) return;
    }
  });
  for (int i = 0; i < 300; ++i) EXPECT_EQ(poll_one(socket_.get(), POLLIN, 1), 0);
  char byte;
  EXPECT_ERRNO(rrecv(socket_.get(), &byte, 1, MSG_DONTWAIT), EAGAIN);
  // All its messages need receives, which come only while somebody looks after the socket.
  std::atomic<bool> done{false};
  std::thread polling([&] {
    while (!done) poll_one(socket_.get(), POLLIN, 1);
  });
  flood.join();
  done = true;
  polling.join();
}

TEST_F(Hostile, GivesUsBuffersThatAreNotThere) {
  peer_.reset();
  socket_.close();
  peer_ = RawPeer::connect_well(at_, [](ConnectData& data) {
    data.first_buffer = {0xdead0000, 0x1234, 0xffffffff};
  });
  ASSERT_TRUE(peer_);
  socket_ = accepted(listening_);
  std::vector<uint8_t> bytes(1000);
  // The peer's own queue pair refuses our write.
  ssize_t sent;
  while ((sent = rsend(socket_.get(), bytes.data(), bytes.size(), 0)) > 0) {
  }
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(Hostile, GivesUsAListThatIsNotThere) {
  peer_.reset();
  socket_.close();
  peer_ = RawPeer::connect_well(at_, [](ConnectData& data) {
    data.buffer_list = {8, 9, 0xffffffff};
  });
  ASSERT_TRUE(peer_);
  socket_ = accepted(listening_);
  char byte;
  EXPECT_ERRNO(rrecv(socket_.get(), &byte, 1, 0), ECONNRESET);
}

TEST_F(Hostile, GivesNoCreditsAndNoBuffer) {
  peer_.reset();
  socket_.close();
  peer_ = RawPeer::connect_well(at_, [](ConnectData& data) {
    data.credits = 0;
    data.first_buffer.length = 0;
  });
  ASSERT_TRUE(peer_);
  socket_ = accepted(listening_);
  EXPECT_ERRNO(rsend(socket_.get(), "x", 1, MSG_DONTWAIT), EAGAIN);
  EXPECT_EQ(poll_one(socket_.get(), POLLOUT, 10), 0);
}

TEST(HostileRequest, OfAnotherVersionOrTooShortIsRefused) {
  Address at;
  const Rsocket listening = listener(&at);
  rdma_cm_id* id = nullptr;
  for (const size_t size : {0u, 39u, 40u}) {
    ASSERT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), 0);
    ASSERT_EQ(rdma_resolve_addr(id, nullptr, at.get(), 5000), 0);
    ASSERT_EQ(rdma_resolve_route(id, 5000), 0);
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {.max_send_wr = 1,
                      .max_recv_wr = 1,
                      .max_send_sge = 1,
                      .max_recv_sge = 1,
                      .max_inline_data = 0};
    ASSERT_EQ(rdma_create_qp(id, nullptr, &attributes), 0);
    std::vector<std::byte> data(size, std::byte{2});
    rdma_conn_param parameters{};
    parameters.private_data = data.data();
    parameters.private_data_len = static_cast<uint8_t>(size);
    EXPECT_ERRNO(rdma_connect(id, &parameters), ECONNREFUSED);
    rdma_destroy_qp(id);
    rdma_destroy_id(id);
  }
  set_nonblocking(listening.get());
  EXPECT_ERRNO(raccept(listening.get(), nullptr, nullptr), EAGAIN);
}

TEST(HostileAnswer, OfAnotherVersionIsRefused) {
  Address at;
  const SyncIdPtr listening = raw_listener(&at);
  std::vector<std::byte> data(rsocket::ConnectData::kSize, std::byte{7});
  std::unique_ptr<RawPeer> peer;
  std::thread server([&] { peer = RawPeer::accept(listening.get(), data); });
  const Rsocket socket = stream_socket();
  EXPECT_ERRNO(rconnect(socket.get(), at.get(), at.length), ECONNREFUSED);
  server.join();
}

// --- the protocol as a peer sees it
// ---------------------------------------------------------------

TEST(Protocol, AConnectionAsTheOtherEndSeesIt) {
  Address at;
  const SyncIdPtr listening = raw_listener(&at);
  std::unique_ptr<RawPeer> peer;
  std::thread server([&] { peer = RawPeer::accept_well(listening.get()); });
  Rsocket socket = stream_socket();
  set_int(socket.get(), SOL_SOCKET, SO_RCVBUF, 32768);
  set_int(socket.get(), SOL_RDMA, RDMA_RQSIZE, 100);
  set_int(socket.get(), SOL_RDMA, RDMA_IOMAPSIZE, 7);
  connect_to(socket, at);
  server.join();
  ASSERT_TRUE(peer);
  const ConnectData& told = peer->told();
  EXPECT_EQ(told.credits, 100);
  EXPECT_EQ(told.iomap_count, 7u);
  EXPECT_EQ(told.buffer_list.length, 2u);
  EXPECT_EQ(told.first_buffer.length, 32768u);

  // The second half, in the second entry of the list, with all credits.
  auto message = peer->hear();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->op, Op::kCredits);
  EXPECT_EQ(message->value, 100u);
  const RemoteBuffer second = RemoteBuffer::load(peer->list() + RemoteBuffer::kSize);
  EXPECT_EQ(second.address, told.first_buffer.address + 32768);
  EXPECT_EQ(second.length, 32768u);
  EXPECT_EQ(second.key, told.first_buffer.key);

  // Data, into the buffer and told by its length.
  EXPECT_EQ(rsend(socket.get(), "hello", 5, 0), 5);
  message = peer->hear();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->op, Op::kData);
  EXPECT_EQ(message->value, 5u);
  EXPECT_EQ(std::memcmp(peer->buffer(), "hello", 5), 0);
  EXPECT_EQ(rsend(socket.get(), "again", 5, 0), 5);
  ASSERT_TRUE(peer->hear());
  EXPECT_EQ(std::memcmp(peer->buffer() + 5, "again", 5), 0);

  // A half that was filled and read comes back in the first entry.
  ASSERT_TRUE(peer->say(Message{Op::kData, 32768}.encode(), told.first_buffer.address,
                        told.first_buffer.key, 32768));
  std::vector<uint8_t> bytes(32768);
  EXPECT_EQ(rrecv(socket.get(), bytes.data(), bytes.size(), MSG_WAITALL), 32768);
  message = peer->hear();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->op, Op::kCredits);
  EXPECT_EQ(message->value, 101u);
  EXPECT_EQ(RemoteBuffer::load(peer->list()).address, told.first_buffer.address);

  // Goodbyes.
  EXPECT_EQ(rshutdown(socket.get(), SHUT_WR), 0);
  message = peer->hear();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->encode(), 0xe0000002u);
  socket.close();
  message = peer->hear();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->encode(), 0xe0000000u);
}

TEST(Protocol, ALongSendIsOneMessage) {
  Address at;
  const SyncIdPtr listening = raw_listener(&at);
  std::unique_ptr<RawPeer> peer;
  std::thread server([&] { peer = RawPeer::accept_well(listening.get()); });
  const Rsocket socket = stream_socket();
  connect_to(socket, at);
  server.join();
  ASSERT_TRUE(peer);
  ASSERT_EQ(peer->hear()->op, Op::kCredits);
  const std::vector<uint8_t> bytes(RawPeer::kBufferBytes, 7);
  EXPECT_EQ(rsend(socket.get(), bytes.data(), bytes.size(), 0), RawPeer::kBufferBytes);
  const auto message = peer->hear();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->encode(), (Message{Op::kData, RawPeer::kBufferBytes}.encode()));
  EXPECT_EQ(std::memcmp(peer->buffer(), bytes.data(), bytes.size()), 0);
}

TEST(Protocol, CreditsComeBackAfterHalfAQueueOfMessages) {
  Address at;
  const SyncIdPtr listening = raw_listener(&at);
  std::unique_ptr<RawPeer> peer;
  std::thread server([&] { peer = RawPeer::accept_well(listening.get()); });
  const Rsocket socket = stream_socket();
  set_int(socket.get(), SOL_RDMA, RDMA_RQSIZE, 16);
  connect_to(socket, at);
  server.join();
  ASSERT_TRUE(peer);
  ASSERT_EQ(peer->hear()->value, 16u);
  uint64_t address = peer->told().first_buffer.address;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(
        peer->say(Message{Op::kData, 1}.encode(), address++, peer->told().first_buffer.key, 1));
  }
  EXPECT_EQ(poll_one(socket.get(), POLLIN), POLLIN);
  const auto message = peer->hear();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->encode(), (Message{Op::kCredits, 24}.encode()));
}

}  // namespace
}  // namespace verbena::test
