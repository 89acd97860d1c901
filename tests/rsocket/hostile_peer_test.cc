// Peers that violate the protocol: the rsocket stays within its memory, reports the error to the
// application and keeps working. Also the messages that a correct peer receives.
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

// An rsocket with a connection from a RawPeer.
class HostilePeer : public ::testing::Test {
 protected:
  void SetUp() override {
    listening_ = listener(&at_);
    peer_ = RawPeer::connect_valid(at_);
    ASSERT_TRUE(peer_);
    socket_ = accepted(listening_);
  }

  // The connection has ended, the socket reports the error once, and a new connection works.
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

  const ConnectData& rsocket_data() { return peer_->rsocket_data(); }

  Address at_;
  Rsocket listening_;
  std::unique_ptr<RawPeer> peer_;
  Rsocket socket_;
};

TEST_F(HostilePeer, DataMessageMakesTheBytesReadable) {
  const char text[] = "hello";
  ASSERT_TRUE(peer_->send_message(
      Message{Op::kData, 5}.encode(), rsocket_data().first_buffer.address,
      rsocket_data().first_buffer.key, 5, reinterpret_cast<const std::byte*>(text)));
  char got[6] = {};
  EXPECT_EQ(rrecv(socket_.get(), got, 5, MSG_WAITALL), 5);
  EXPECT_STREQ(got, "hello");
}

// The peer has used all its credits, and the application does not read. Messages that need no
// credit must not wait.
TEST_F(HostilePeer, CanSendControlMessagesWithoutCredits) {
  socket_.close();
  peer_ = RawPeer::connect_valid(at_, {}, 0);
  ASSERT_TRUE(peer_);
  socket_ = accepted(listening_);
  for (unsigned i = 0; i < rsocket_data().credits; ++i)
    ASSERT_TRUE(peer_->send_message(Op::kData, 1)) << i;
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(peer_->send_message(Op::kCredits, 64)) << i;
  ASSERT_TRUE(peer_->send_message(Op::kControl, static_cast<uint32_t>(Control::kShutdown)));
  ASSERT_TRUE(peer_->send_message(Op::kControl, static_cast<uint32_t>(Control::kDisconnect)));
  std::vector<uint8_t> bytes(rsocket_data().credits);
  EXPECT_EQ(rrecv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL),
            static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(rrecv(socket_.get(), bytes.data(), bytes.size(), 0), 0);
}

TEST_F(HostilePeer, FailsIfItAnnouncesMoreDataThanFits) {
  peer_->send_message(Op::kData, rsocket_data().first_buffer.length * 2 + 1);
  expect_protocol_error();
}

TEST_F(HostilePeer, FailsIfItAnnouncesTheLargestLength) {
  peer_->send_message(Op::kData, Message::kMaxValue);
  expect_protocol_error();
}

TEST_F(HostilePeer, FailsIfItAnnouncesMoreThanItWasGranted) {
  // The peer may announce bytes that it did not write, but not more than it was granted.
  ASSERT_TRUE(peer_->send_message(Op::kData, rsocket_data().first_buffer.length));
  std::vector<uint8_t> bytes(rsocket_data().first_buffer.length);
  EXPECT_EQ(rrecv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL),
            static_cast<ssize_t>(bytes.size()));
  for (int i = 0; i < 8; ++i) {
    if (!peer_->send_message(Op::kData, rsocket_data().first_buffer.length)) break;
  }
  char byte;
  ssize_t got;
  while ((got = rrecv(socket_.get(), &byte, 1, 0)) > 0) {
  }
  EXPECT_EQ(got, -1);
  EXPECT_EQ(errno, EPROTO);
}

TEST_F(HostilePeer, FailsIfItGrantsCreditsBeyondItsQueue) {
  peer_->send_message(Op::kCredits, 5000);
  expect_protocol_error();
}

TEST_F(HostilePeer, FailsIfItReducesCredits) {
  ASSERT_EQ(rsend(socket_.get(), "x", 1, 0), 1);
  peer_->send_message(Op::kCredits, 0);
  expect_protocol_error();
}

TEST_F(HostilePeer, FailsIfItGrantsTooManyBuffers) {
  const RemoteBuffer buffer{1, 2, 3};
  std::byte entries[2 * RemoteBuffer::kSize];
  buffer.store(entries, false);
  buffer.store(entries + RemoteBuffer::kSize, false);
  peer_->send_message(Message{Op::kCredits, 64}.encode(), rsocket_data().buffer_list.address,
                      rsocket_data().buffer_list.key, sizeof entries, entries);
  expect_protocol_error();
}

TEST_F(HostilePeer, FailsOnUnknownOperations) {
  for (const uint32_t op : {1u, 2u, 3u, 5u}) {
    SCOPED_TRACE(op);
    peer_->send_message(op << 29 | 1);
    expect_protocol_error();
    peer_.reset();
    socket_.close();
    SetUp();
  }
}

TEST_F(HostilePeer, FailsIfItSendsWithoutImmediate) {
  peer_->send_without_immediate();
  expect_protocol_error();
}

TEST_F(HostilePeer, FailsIfItSendsDataAfterShutdown) {
  ASSERT_TRUE(peer_->send_message(Op::kControl, static_cast<uint32_t>(Control::kShutdown)));
  char byte;
  EXPECT_EQ(rrecv(socket_.get(), &byte, 1, 0), 0);
  peer_->send_message(Op::kData, 1);
  while (!(poll_one(socket_.get(), POLLIN) & POLLHUP)) {
  }
  EXPECT_ERRNO(rrecv(socket_.get(), &byte, 1, 0), EPROTO);
}

// The socket is always writable, so poll need not check for other events.
TEST_F(HostilePeer, PollForWritingReportsItsDisconnect) {
  EXPECT_EQ(poll_one(socket_.get(), POLLOUT), POLLOUT);
  ASSERT_TRUE(peer_->send_message(Op::kControl, static_cast<uint32_t>(Control::kDisconnect)));
  while (!(poll_one(socket_.get(), POLLOUT) & POLLHUP)) {
  }
}

TEST_F(HostilePeer, UnknownControlMessagesAreIgnored) {
  ASSERT_TRUE(peer_->send_message(Op::kControl, 3));
  ASSERT_TRUE(peer_->send_message(Op::kControl, Message::kMaxValue));
  ASSERT_TRUE(peer_->send_message(Op::kControl, static_cast<uint32_t>(Control::kKeepalive)));
  ASSERT_TRUE(peer_->send_message(Op::kIomap, 12345));  // ignored
  EXPECT_EQ(poll_one(socket_.get(), POLLIN, 50), 0);
  EXPECT_EQ(rsend(socket_.get(), "x", 1, 0), 1);
}

TEST_F(HostilePeer, FailsIfItWritesOutsideItsMemory) {
  // The queue pair rejects the WRITE, and the connection ends.
  EXPECT_FALSE(peer_->send_message(Message{Op::kData, 5}.encode(),
                                   rsocket_data().first_buffer.address + (8u << 20),
                                   rsocket_data().first_buffer.key, 5));
  char byte;
  EXPECT_ERRNO(rrecv(socket_.get(), &byte, 1, 0), ECONNRESET);
}

TEST_F(HostilePeer, AFloodOfEmptyMessagesIsIgnored) {
  std::thread flood([&] {
    for (int i = 0; i < 3000; ++i) {
      if (!peer_->send_message(Op::kData, 0)) return;
    }
  });
  for (int i = 0; i < 300; ++i) EXPECT_EQ(poll_one(socket_.get(), POLLIN, 1), 0);
  char byte;
  EXPECT_ERRNO(rrecv(socket_.get(), &byte, 1, MSG_DONTWAIT), EAGAIN);
  // Each message needs a receive, which is posted only while a thread uses the socket.
  std::atomic<bool> done{false};
  std::thread polling([&] {
    while (!done) poll_one(socket_.get(), POLLIN, 1);
  });
  flood.join();
  done = true;
  polling.join();
}

TEST_F(HostilePeer, FailsIfItsBufferIsNotRegistered) {
  peer_.reset();
  socket_.close();
  peer_ = RawPeer::connect_valid(at_, [](ConnectData& data) {
    data.first_buffer = {0xdead0000, 0x1234, 0xffffffff};
  });
  ASSERT_TRUE(peer_);
  socket_ = accepted(listening_);
  std::vector<uint8_t> bytes(1000);
  // The peer's queue pair rejects the WRITE.
  ssize_t sent;
  while ((sent = rsend(socket_.get(), bytes.data(), bytes.size(), 0)) > 0) {
  }
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(HostilePeer, FailsIfItsBufferListIsNotRegistered) {
  peer_.reset();
  socket_.close();
  peer_ = RawPeer::connect_valid(at_, [](ConnectData& data) {
    data.buffer_list = {8, 9, 0xffffffff};
  });
  ASSERT_TRUE(peer_);
  socket_ = accepted(listening_);
  char byte;
  EXPECT_ERRNO(rrecv(socket_.get(), &byte, 1, 0), ECONNRESET);
}

TEST_F(HostilePeer, SendReturnsEagainIfItGrantsNothing) {
  peer_.reset();
  socket_.close();
  peer_ = RawPeer::connect_valid(at_, [](ConnectData& data) {
    data.credits = 0;
    data.first_buffer.length = 0;
  });
  ASSERT_TRUE(peer_);
  socket_ = accepted(listening_);
  EXPECT_ERRNO(rsend(socket_.get(), "x", 1, MSG_DONTWAIT), EAGAIN);
  EXPECT_EQ(poll_one(socket_.get(), POLLOUT, 10), 0);
}

TEST(HostileRequest, RejectsAnotherVersionAndShortData) {
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

TEST(HostileReply, RejectsAnotherVersion) {
  Address at;
  const SyncIdPtr listening = raw_listener(&at);
  std::vector<std::byte> data(rsocket::ConnectData::kSize, std::byte{7});
  std::unique_ptr<RawPeer> peer;
  std::thread server([&] { peer = RawPeer::accept(listening.get(), data); });
  const Rsocket socket = stream_socket();
  EXPECT_ERRNO(rconnect(socket.get(), at.get(), at.length), ECONNREFUSED);
  server.join();
}

// --- the protocol from the peer's view
// ---------------------------------------------------------------

TEST(Protocol, SendsTheExpectedMessages) {
  Address at;
  const SyncIdPtr listening = raw_listener(&at);
  std::unique_ptr<RawPeer> peer;
  std::thread server([&] { peer = RawPeer::accept_valid(listening.get()); });
  Rsocket socket = stream_socket();
  set_int(socket.get(), SOL_SOCKET, SO_RCVBUF, 32768);
  set_int(socket.get(), SOL_RDMA, RDMA_RQSIZE, 100);
  set_int(socket.get(), SOL_RDMA, RDMA_IOMAPSIZE, 7);
  connect_to(socket, at);
  server.join();
  ASSERT_TRUE(peer);
  const ConnectData& rsocket_data = peer->rsocket_data();
  EXPECT_EQ(rsocket_data.credits, 100);
  EXPECT_EQ(rsocket_data.iomap_count, 7u);
  EXPECT_EQ(rsocket_data.buffer_list.length, 2u);
  EXPECT_EQ(rsocket_data.first_buffer.length, 32768u);

  // The second half is in the second entry of the list, with all credits.
  auto message = peer->receive_message();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->op, Op::kCredits);
  EXPECT_EQ(message->value, 100u);
  const RemoteBuffer second = RemoteBuffer::load(peer->list() + RemoteBuffer::kSize);
  EXPECT_EQ(second.address, rsocket_data.first_buffer.address + 32768);
  EXPECT_EQ(second.length, 32768u);
  EXPECT_EQ(second.key, rsocket_data.first_buffer.key);

  // Data is written into the buffer and announced by its length.
  EXPECT_EQ(rsend(socket.get(), "hello", 5, 0), 5);
  message = peer->receive_message();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->op, Op::kData);
  EXPECT_EQ(message->value, 5u);
  EXPECT_EQ(std::memcmp(peer->buffer(), "hello", 5), 0);
  EXPECT_EQ(rsend(socket.get(), "again", 5, 0), 5);
  ASSERT_TRUE(peer->receive_message());
  EXPECT_EQ(std::memcmp(peer->buffer() + 5, "again", 5), 0);

  // A half that was filled and read is granted again in the first entry.
  ASSERT_TRUE(peer->send_message(Message{Op::kData, 32768}.encode(),
                                 rsocket_data.first_buffer.address, rsocket_data.first_buffer.key,
                                 32768));
  std::vector<uint8_t> bytes(32768);
  EXPECT_EQ(rrecv(socket.get(), bytes.data(), bytes.size(), MSG_WAITALL), 32768);
  message = peer->receive_message();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->op, Op::kCredits);
  EXPECT_EQ(message->value, 101u);
  EXPECT_EQ(RemoteBuffer::load(peer->list()).address, rsocket_data.first_buffer.address);

  // Shutdown and disconnect.
  EXPECT_EQ(rshutdown(socket.get(), SHUT_WR), 0);
  message = peer->receive_message();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->encode(), 0xe0000002u);
  socket.close();
  message = peer->receive_message();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->encode(), 0xe0000000u);
}

TEST(Protocol, ALongSendIsOneMessage) {
  Address at;
  const SyncIdPtr listening = raw_listener(&at);
  std::unique_ptr<RawPeer> peer;
  std::thread server([&] { peer = RawPeer::accept_valid(listening.get()); });
  const Rsocket socket = stream_socket();
  connect_to(socket, at);
  server.join();
  ASSERT_TRUE(peer);
  ASSERT_EQ(peer->receive_message()->op, Op::kCredits);
  const std::vector<uint8_t> bytes(RawPeer::kBufferBytes, 7);
  EXPECT_EQ(rsend(socket.get(), bytes.data(), bytes.size(), 0), RawPeer::kBufferBytes);
  const auto message = peer->receive_message();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->encode(), (Message{Op::kData, RawPeer::kBufferBytes}.encode()));
  EXPECT_EQ(std::memcmp(peer->buffer(), bytes.data(), bytes.size()), 0);
}

TEST(Protocol, GrantsCreditsAfterHalfAQueueOfMessages) {
  Address at;
  const SyncIdPtr listening = raw_listener(&at);
  std::unique_ptr<RawPeer> peer;
  std::thread server([&] { peer = RawPeer::accept_valid(listening.get()); });
  const Rsocket socket = stream_socket();
  set_int(socket.get(), SOL_RDMA, RDMA_RQSIZE, 16);
  connect_to(socket, at);
  server.join();
  ASSERT_TRUE(peer);
  ASSERT_EQ(peer->receive_message()->value, 16u);
  uint64_t address = peer->rsocket_data().first_buffer.address;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(peer->send_message(Message{Op::kData, 1}.encode(), address++,
                                   peer->rsocket_data().first_buffer.key, 1));
  }
  EXPECT_EQ(poll_one(socket.get(), POLLIN), POLLIN);
  const auto message = peer->receive_message();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->encode(), (Message{Op::kCredits, 24}.encode()));
}

}  // namespace
}  // namespace verbena::test
