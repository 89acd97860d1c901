// Event channels as descriptors, acknowledgement of events, migration of identifiers.
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

void start_resolving(rdma_cm_id* id) {
  Address to = ip("127.0.0.1", 7777);
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, to.get(), 1000), 0) << strerror(errno);
}

TEST(Events, TheDescriptorIsReadableWhileEventsArePending) {
  ChannelPtr channel = make_channel();
  const IdPtr a = make_id(channel.get());
  const IdPtr b = make_id(channel.get());
  EXPECT_FALSE(event_within_ms(channel.get(), 0));
  start_resolving(a.get());
  start_resolving(b.get());
  EXPECT_TRUE(event_within_ms(channel.get(), 0));
  EXPECT_EQ(expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED)->id, a.get());
  EXPECT_TRUE(event_within_ms(channel.get(), 0));
  EXPECT_EQ(expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED)->id, b.get());
  EXPECT_FALSE(event_within_ms(channel.get(), 0));
}

TEST(Events, NonblockingGetReturnsEagain) {
  ChannelPtr channel = make_channel();
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_ERRNO(rdma_get_cm_event(channel.get(), &event), EAGAIN);
  const IdPtr id = make_id(channel.get());
  start_resolving(id.get());
  expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_ERRNO(rdma_get_cm_event(channel.get(), &event), EAGAIN);
}

TEST(Events, EpollReportsThem) {
  ChannelPtr channel = make_channel();
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{.events = EPOLLIN, .data = {.u32 = 5}};
  ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &wanted), 0);
  epoll_event got{};
  EXPECT_EQ(epoll_wait(epoll, &got, 1, 0), 0);
  const IdPtr id = make_id(channel.get());
  start_resolving(id.get());
  EXPECT_EQ(epoll_wait(epoll, &got, 1, 10'000), 1);
  EXPECT_EQ(got.data.u32, 5u);
  expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(epoll_wait(epoll, &got, 1, 0), 0);
  close(epoll);
}

TEST(Events, WakeAWaitingThread) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  std::thread waiter([&] {
    rdma_cm_event* event = nullptr;
    ASSERT_EQ(rdma_get_cm_event(channel.get(), &event), 0);
    EXPECT_EQ(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
    rdma_ack_cm_event(event);
  });
  start_resolving(id.get());
  waiter.join();
}

TEST(Events, ManyThreadsCanShareAChannel) {
  ChannelPtr channel = make_channel();
  constexpr int kEvents = 400;
  std::atomic<int> received{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEvents / 4; ++i) {
        rdma_cm_event* event = nullptr;
        ASSERT_EQ(rdma_get_cm_event(channel.get(), &event), 0);
        EXPECT_EQ(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
        rdma_ack_cm_event(event);
        ++received;
      }
    });
  }
  std::vector<IdPtr> ids;
  for (int i = 0; i < kEvents; ++i) {
    ids.push_back(make_id(channel.get()));
    start_resolving(ids.back().get());
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(received, kEvents);
}

TEST(Events, DestroyWaitsForTheAcknowledgement) {
  ChannelPtr channel = make_channel();
  IdPtr id = make_id(channel.get());
  start_resolving(id.get());
  EventPtr event = expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  std::atomic<bool> destroyed{false};
  std::thread destroyer([&] {
    id.reset();
    destroyed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(destroyed);
  event.reset();
  destroyer.join();
  EXPECT_TRUE(destroyed);
}

TEST(Events, DestroyRemovesUnreadEvents) {
  ChannelPtr channel = make_channel();
  IdPtr destroyed_id = make_id(channel.get());
  const IdPtr stays = make_id(channel.get());
  start_resolving(destroyed_id.get());
  start_resolving(stays.get());
  destroyed_id.reset();
  EXPECT_EQ(expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED)->id, stays.get());
  EXPECT_FALSE(event_within_ms(channel.get(), 0));
}

// A function of the leak sanitizer, if the test is built with it.
extern "C" void __lsan_ignore_object(const void* object) __attribute__((weak));

TEST(Events, AChannelCanBeDestroyedWhileAThreadWaits) {
  ChannelPtr channel = make_channel();
  rdma_event_channel* raw = channel.get();
  std::atomic<bool> returned{false};
  std::thread waiter([&] {
    rdma_cm_event* event = nullptr;
    rdma_get_cm_event(raw, &event);
    returned = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  channel.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(returned);  // never, as in the kernel
  // The waiting thread keeps the channel. A cancelled thread does not free it.
  if (__lsan_ignore_object != nullptr) __lsan_ignore_object(raw);
  pthread_cancel(waiter.native_handle());
  waiter.join();
}

TEST(Events, MigrateWithTheirIdentifier) {
  ChannelPtr before = make_channel();
  ChannelPtr after = make_channel();
  const IdPtr moved = make_id(before.get());
  const IdPtr stays = make_id(before.get());
  start_resolving(moved.get());
  start_resolving(stays.get());
  ASSERT_EQ(rdma_migrate_id(moved.get(), after.get()), 0);
  EXPECT_EQ(moved->channel, after.get());
  EXPECT_EQ(expect_event(after.get(), RDMA_CM_EVENT_ADDR_RESOLVED)->id, moved.get());
  EXPECT_EQ(expect_event(before.get(), RDMA_CM_EVENT_ADDR_RESOLVED)->id, stays.get());
  EXPECT_FALSE(event_within_ms(before.get(), 0));
  ASSERT_EQ(rdma_resolve_route(moved.get(), 1000), 0);
  expect_event(after.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
}

TEST(Events, MigrationWaitsForTheAcknowledgement) {
  ChannelPtr before = make_channel();
  ChannelPtr after = make_channel();
  const IdPtr id = make_id(before.get());
  start_resolving(id.get());
  EventPtr event = expect_event(before.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  std::atomic<bool> migrated{false};
  std::thread migrator([&] {
    EXPECT_EQ(rdma_migrate_id(id.get(), after.get()), 0);
    migrated = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(migrated);
  event.reset();
  migrator.join();
}

TEST(Events, RequestsMigrateWithTheirListener) {
  Pair pair;
  ChannelPtr after = make_channel();
  pair.client = resolve(pair.client_channel.get(), "127.0.0.1", source_port(pair.listener.get()));
  rdma_conn_param param = connect_parameters();
  param.qp_num = 77;
  ASSERT_EQ(rdma_connect(pair.client.get(), &param), 0);
  ASSERT_TRUE(event_within_ms(pair.server_channel.get(), 10'000));
  ASSERT_EQ(rdma_migrate_id(pair.listener.get(), after.get()), 0);
  EventPtr request = expect_event(after.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(request, nullptr);
  pair.server.reset(request->id);
  EXPECT_EQ(pair.server->channel, after.get());
  request.reset();
  pair.client.reset();
  expect_event(after.get(), RDMA_CM_EVENT_REJECTED, 4);
  pair.server.reset();
  pair.listener.reset();
}

TEST(Events, AnIdentifierCanBecomeSynchronousAndBack) {
  ChannelPtr channel = make_channel();
  const IdPtr id = make_id(channel.get());
  ASSERT_EQ(rdma_migrate_id(id.get(), nullptr), 0);
  EXPECT_ERRNO(rdma_migrate_id(id.get(), nullptr), EINVAL);
  Address to = ip("127.0.0.1", 7777);
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, to.get(), 1000), 0);
  ASSERT_NE(id->event, nullptr);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_migrate_id(id.get(), channel.get()), 0);
  EXPECT_EQ(id->event, nullptr);
  ASSERT_EQ(rdma_resolve_route(id.get(), 1000), 0);
  expect_event(channel.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
}

TEST(Events, HaveNames) {
  EXPECT_STREQ(rdma_event_str(RDMA_CM_EVENT_ADDR_RESOLVED), "RDMA_CM_EVENT_ADDR_RESOLVED");
  EXPECT_STREQ(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
  const int beyond = 1000;
  rdma_cm_event_type unknown;
  std::memcpy(&unknown, &beyond, sizeof unknown);
  EXPECT_STREQ(rdma_event_str(unknown), "UNKNOWN EVENT");
}

TEST(Events, RejectNullPointers) {
  ChannelPtr channel = make_channel();
  EXPECT_ERRNO(rdma_ack_cm_event(nullptr), EINVAL);
  EXPECT_ERRNO(rdma_get_cm_event(channel.get(), nullptr), EINVAL);
}

}  // namespace
}  // namespace verbena::test
