// Several processes: connections between them, forked children, peers that are killed, and leaks
// after many connections.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/rdmacm/cm_support.h"
#include "tests/support/fork_watch.h"

namespace verbena::test {
namespace {

// Runs `body` in a forked child. The result is the child's exit status.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) {
    pid_ = fork();
    if (pid_ == 0) _exit(body() ? 0 : 1);
  }
  bool passed() {
    int status = -1;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  void end() {
    kill(pid_, SIGKILL);
    passed();
  }
  ~Child() {
    if (pid_ > 0) end();
  }

 private:
  pid_t pid_ = -1;
};

// A client that connects, sends nothing and, if `disconnects`, disconnects. False if a call fails.
bool connect_to(uint16_t port, bool disconnects) {
  rdma_cm_id* id = nullptr;
  Address to = ip("127.0.0.1", port);
  ibv_qp_init_attr attr = qp_attributes();
  if (rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) != 0) return false;
  if (rdma_resolve_addr(id, nullptr, to.get(), 1000) != 0) return false;
  if (rdma_resolve_route(id, 1000) != 0) return false;
  if (rdma_create_qp(id, nullptr, &attr) != 0) return false;
  if (rdma_connect(id, nullptr) != 0) return false;
  if (!disconnects) pause();
  if (rdma_disconnect(id) != 0) return false;
  rdma_destroy_ep(id);
  return true;
}

IdPtr accept_one(Pair& pair) {
  EventPtr request = expect_event(pair.server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  if (request == nullptr) return nullptr;
  IdPtr id(request->id);
  ibv_qp_init_attr attr = qp_attributes();
  EXPECT_EQ(rdma_create_qp(id.get(), nullptr, &attr), 0);
  EXPECT_EQ(rdma_accept(id.get(), nullptr), 0);
  request.reset();
  expect_event(pair.server_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  return id;
}

TEST(Processes, ConnectToEachOther) {
  Pair pair;
  const uint16_t port = source_port(pair.listener.get());
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(std::make_unique<Child>([port] { return connect_to(port, true); }));
    const IdPtr server = accept_one(pair);
    expect_event(pair.server_channel.get(), RDMA_CM_EVENT_DISCONNECTED);
    EXPECT_TRUE(children.back()->passed());
  }
}

TEST(Processes, RequestsReachTheListenerOfTheirPort) {
  Pair here;
  int port_pipe[2];
  int end_pipe[2];
  ASSERT_TRUE(pipe(port_pipe) == 0 && pipe(end_pipe) == 0);
  Child other([&] {
    rdma_cm_id* listener = nullptr;
    Address any = ip("127.0.0.1");
    if (rdma_create_id(nullptr, &listener, nullptr, RDMA_PS_TCP) != 0) return false;
    if (rdma_bind_addr(listener, any.get()) != 0 || rdma_listen(listener, 1) != 0) return false;
    const uint16_t port = source_port(listener);
    if (write(port_pipe[1], &port, sizeof port) != sizeof port) return false;
    rdma_cm_id* id = nullptr;
    if (rdma_get_request(listener, &id) != 0) return false;
    if (rdma_reject(id, "there", 5) != 0) return false;
    // Without steering this process may receive the REJ and has to forward it.
    close(end_pipe[1]);
    char nothing = 0;
    return read(end_pipe[0], &nothing, 1) == 0;
  });
  uint16_t there = 0;
  ASSERT_EQ(read(port_pipe[0], &there, sizeof there), ssize_t{sizeof there});
  ChannelPtr channel = make_channel();
  const IdPtr client = resolve(channel.get(), "127.0.0.1", there);
  rdma_conn_param param = connect_parameters();
  param.qp_num = 77;
  ASSERT_EQ(rdma_connect(client.get(), &param), 0);
  EventPtr rejected = expect_event(channel.get(), RDMA_CM_EVENT_REJECTED, 28);
  ASSERT_NE(rejected, nullptr);
  EXPECT_EQ(data_of(rejected->param.conn), "there");
  close(end_pipe[1]);
  EXPECT_TRUE(other.passed());
  close(end_pipe[0]);
  EXPECT_FALSE(event_within_ms(here.server_channel.get(), 0));
  close(port_pipe[0]);
  close(port_pipe[1]);
}

TEST(Processes, APortStaysUsableAfterAPeerIsKilled) {
  Pair pair;
  const uint16_t port = source_port(pair.listener.get());
  Child victim([port] { return connect_to(port, false); });
  IdPtr server = accept_one(pair);
  victim.end();
  server.reset();  // the peer does not respond, and destroy does not wait
  Child next([port] { return connect_to(port, true); });
  const IdPtr again = accept_one(pair);
  expect_event(pair.server_channel.get(), RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_TRUE(next.passed());
}

TEST(Processes, DisconnectsFromAKilledClient) {
  Pair pair;
  const uint16_t port = source_port(pair.listener.get());
  Child victim([port] { return connect_to(port, false); });
  const IdPtr server = accept_one(pair);
  ASSERT_NE(server, nullptr);
  victim.end();
  EXPECT_EQ(expect_event(pair.server_channel.get(), RDMA_CM_EVENT_DISCONNECTED)->id, server.get());
}

TEST(Processes, DisconnectsFromAKilledServer) {
  int port_pipe[2];
  ASSERT_EQ(pipe(port_pipe), 0);
  Child victim([&] {
    Pair pair;
    const uint16_t port = source_port(pair.listener.get());
    if (write(port_pipe[1], &port, sizeof port) != sizeof port) return false;
    const IdPtr server = accept_one(pair);
    pause();
    return false;
  });
  uint16_t port = 0;
  ASSERT_EQ(read(port_pipe[0], &port, sizeof port), ssize_t{sizeof port});
  ChannelPtr channel = make_channel();
  const IdPtr client = resolve(channel.get(), "127.0.0.1", port);
  ibv_qp_init_attr attr = qp_attributes();
  ASSERT_EQ(rdma_create_qp(client.get(), nullptr, &attr), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  expect_event(channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  victim.end();
  expect_event(channel.get(), RDMA_CM_EVENT_DISCONNECTED);
  close(port_pipe[0]);
  close(port_pipe[1]);
}

// --------------------------------------------------------------------------------------- forking

TEST(Fork, CallsInTheChildFail) {
  Pair pair;
  pair.connect();
  ChannelPtr channel = make_channel();
  const IdPtr bound = make_id(channel.get());
  const IdPtr synchronous = make_id(nullptr);
  Child child([&] {
    rdma_cm_event* event = nullptr;
    rdma_cm_id* id = nullptr;
    Address at = ip("127.0.0.1", 1);
    ibv_qp_init_attr attr = qp_attributes();
    const auto fails = [](int result) { return result == -1 && (errno == EIO || errno == ENODEV); };
    const bool all = fails(rdma_get_cm_event(channel.get(), &event)) &&
                     fails(rdma_bind_addr(bound.get(), at.get())) &&
                     fails(rdma_resolve_addr(bound.get(), nullptr, at.get(), 1)) &&
                     fails(rdma_resolve_addr(synchronous.get(), nullptr, at.get(), 1)) &&
                     fails(rdma_create_id(channel.get(), &id, nullptr, RDMA_PS_TCP)) &&
                     fails(rdma_listen(bound.get(), 1)) &&
                     fails(rdma_accept(pair.server.get(), nullptr)) &&
                     fails(rdma_disconnect(pair.client.get())) &&
                     fails(rdma_reject(pair.server.get(), nullptr, 0)) &&
                     fails(rdma_migrate_id(bound.get(), nullptr)) &&
                     fails(rdma_create_qp(bound.get(), nullptr, &attr)) &&
                     fails(rdma_destroy_id(pair.client.get()));
    rdma_destroy_event_channel(pair.client_channel.get());  // closes its copy of the descriptor
    return all;
  });
  EXPECT_TRUE(child.passed());
  expect_data_flows(pair.client.get(), pair.server.get());  // the parent's objects still work
  ASSERT_EQ(rdma_disconnect(pair.client.get()), 0);
  pair.expect_disconnected();
}

TEST(Fork, HandlersInTheChildNeitherAllocateNorLock) {
  Pair pair;
  pair.connect();
  ChannelPtr channel = make_channel();
  const IdPtr everywhere = make_id(channel.get());
  Address any = ip("0.0.0.0");
  ASSERT_EQ(rdma_bind_addr(everywhere.get(), any.get()), 0);
  ASSERT_EQ(rdma_listen(everywhere.get(), 1), 0);
  expect_safe_fork_handlers();
}

TEST(Fork, AnUnusedChannelWorksInTheChild) {
  EXPECT_TRUE(passes_in_new_process("Fork.DISABLED_AnUnusedChannelWorksInTheChild"));
}

TEST(Fork, DISABLED_AnUnusedChannelWorksInTheChild) {
  ChannelPtr channel = make_channel();
  Child child([&] {
    const IdPtr id = resolve(channel.get(), "127.0.0.1", 7777);
    return !testing::Test::HasFailure();
  });
  EXPECT_TRUE(child.passed());
}

TEST(Fork, TheChildCanConnect) {
  Pair pair;  // uses the library before the fork
  Child child([] {
    Pair own;
    own.connect();
    expect_data_flows(own.client.get(), own.server.get());
    const bool disconnected = rdma_disconnect(own.client.get()) == 0;
    own.expect_disconnected();
    return disconnected && !testing::Test::HasFailure();
  });
  EXPECT_TRUE(child.passed());
}

TEST(Fork, WorksWhileOtherThreadsListDevices) {
  EXPECT_TRUE(passes_in_new_process("Fork.DISABLED_WorksWhileOtherThreadsListDevices"));
}

// No device has been opened in this process.
TEST(Fork, DISABLED_WorksWhileOtherThreadsListDevices) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) ibv_free_device_list(ibv_get_device_list(nullptr));
    });
  }
  for (int i = 0; i < 50; ++i) {
    Child child([] {
      alarm(20);
      const ChannelPtr channel(rdma_create_event_channel());
      return channel != nullptr;
    });
    EXPECT_TRUE(child.passed());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(Fork, WorksWhileOtherThreadsConnect) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        Pair pair;
        pair.connect();
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    Child child([] {
      ChannelPtr channel(rdma_create_event_channel());
      return channel != nullptr;
    });
    EXPECT_TRUE(child.passed());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

// --------------------------------------------------------------------------------------- leaks

TEST(Leaks, ClosesDescriptorsAfterManyConnections) {
  {
    Pair warm_up;  // devices with their threads and sockets stay open
    warm_up.connect();
  }
  const size_t before = open_descriptors();
  {
    Pair pair;
    std::vector<IdPtr> kept;
    for (int i = 0; i < 500; ++i) {
      pair.connect();
      ASSERT_NE(pair.server, nullptr);
      if (i % 10 == 0) {
        kept.push_back(std::move(pair.client));
        kept.push_back(std::move(pair.server));
        continue;
      }
      ASSERT_EQ(rdma_disconnect(pair.client.get()), 0);
      // TIMEWAIT_EXIT events of earlier connections may be in between.
      for (rdma_event_channel* channel : {pair.client_channel.get(), pair.server_channel.get()}) {
        for (;;) {
          EventPtr event = next_event(channel);
          ASSERT_NE(event, nullptr);
          if (event->event == RDMA_CM_EVENT_DISCONNECTED) break;
        }
      }
      pair.client.reset();
      pair.server.reset();
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace verbena::test
