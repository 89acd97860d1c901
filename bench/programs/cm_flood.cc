// cm_flood: many threads open and close rdma_cm connections to a server process on this host.
// Prints connections per second. Fails if the connections leak memory, descriptors, queue pairs or
// keys.
//
//   verbena run -- cm_flood [-c 10000] [-t 32] [-o 1000] [-a 127.0.0.1] [-d] [-q] [-v verbena]
//     -c  connections in total        -t  threads that open and close them
//     -o  open at the same time       -a  the server's address
//     -d  data: each connection also WRITEs a number to the server and READs it back
//     -q  each connection has its own completion queues and channels (4 descriptors)
//     -v  the verbena command, which reports the number of queue pairs and keys
//
// Every connection request has a number in its private data; the server must return the same
// number. A warm-up round precedes the measured round, so that pools and tables have reached their
// size. A pool may reach it later: the receive buffers for GRO batches, for example, exist from the
// first batch on. A leak grows in every round, a pool does not: after growth the round is repeated.
#include <getopt.h>
#include <malloc.h>
#include <rdma/rdma_cma.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct Options {
  long connections = 10000;
  long threads = 32;
  long open = 1000;
  std::string address = "127.0.0.1";
  bool data = false;
  bool own_queues = false;
  std::string verbena;
};
Options options;
const char* side = "client";

constexpr auto kCleanupTimeout = 60s;      // for connections to leave TIMEWAIT
constexpr int kMaxRounds = 3;              // growth of memory in each of them is a leak
constexpr int64_t kHeapSlack = 256 << 10;  // 26 bytes per connection of the default 10,000
constexpr int64_t kRssSlack = 16 << 20;    // malloc returns pages to the kernel late

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "cm_flood: FAILED (%s): %s\n", side, text);
  std::_Exit(1);  // other threads are running
}

[[noreturn]] void fail_errno(const char* what) { fail("%s: %s", what, std::strerror(errno)); }

// ---------------------------------------------------------------------------- resource usage

struct Usage {
  int64_t descriptors = 0;
  int64_t heap = 0;  // bytes allocated by malloc, in all arenas
  int64_t rss = 0;
};

int64_t heap_in_use() {
  char* text = nullptr;
  size_t size = 0;
  FILE* file = open_memstream(&text, &size);
  if (!file || malloc_info(0, file) != 0) fail_errno("malloc_info");
  std::fclose(file);
  // The totals over all arenas come last.
  const std::string all(text, size);
  std::free(text);
  const auto last = [&](const char* line) {
    const size_t at = all.rfind(line);
    const size_t value = at == std::string::npos ? at : all.find("size=\"", at);
    return value == std::string::npos ? 0 : std::atoll(all.c_str() + value + 6);
  };
  return last("<system type=\"current\"") + last("<total type=\"mmap\"") -
         last("<total type=\"fast\"") - last("<total type=\"rest\"");
}

Usage usage_now() {
  Usage u;
  u.heap = heap_in_use();
  // One of them belongs to the directory iterator.
  u.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  long pages = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file || std::fscanf(file, "%*s %ld", &pages) != 1) fail_errno("/proc/self/statm");
  std::fclose(file);
  u.rss = pages * sysconf(_SC_PAGESIZE);
  return u;
}

void raise_descriptor_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) fail_errno("RLIMIT_NOFILE");
}

// -------------------------------------------------------------------------------- both sides

// Private data in both directions: the connection's number, and from the server the memory for
// WRITE and READ.
struct PrivateData {
  uint64_t number = 0;
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint32_t reserved = 0;
};

// A connection with its memory.
struct Connection {
  rdma_cm_id* id = nullptr;
  ibv_mr* mr = nullptr;
  uint64_t cell = 0;  // the memory for WRITE and READ
};

void make_queue_pair(Connection& c, ibv_cq* shared) {
  ibv_qp_init_attr wanted{};
  wanted.cap = {.max_send_wr = 2,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
  wanted.qp_type = IBV_QPT_RC;
  if (!options.own_queues) wanted.send_cq = wanted.recv_cq = shared;
  if (rdma_create_qp(c.id, nullptr, &wanted) != 0) fail_errno("rdma_create_qp");
  if (!options.data) return;
  c.mr = ibv_reg_mr(c.id->pd, &c.cell, sizeof c.cell,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  if (!c.mr) fail_errno("ibv_reg_mr");
}

void destroy(std::unique_ptr<Connection> c) {
  rdma_destroy_qp(c->id);
  if (c->mr && ibv_dereg_mr(c->mr) != 0) fail_errno("ibv_dereg_mr");
  if (rdma_destroy_id(c->id) != 0) fail_errno("rdma_destroy_id");
}

PrivateData private_data_of(const rdma_cm_event& event) {
  PrivateData g;
  if (!event.param.conn.private_data || event.param.conn.private_data_len < sizeof g)
    fail("the other side's private data is missing");
  std::memcpy(&g, event.param.conn.private_data, sizeof g);
  return g;
}

rdma_conn_param parameters_with(const PrivateData& g) {
  rdma_conn_param p{};
  p.responder_resources = 1;
  p.initiator_depth = 1;
  p.retry_count = 7;
  p.rnr_retry_count = 7;
  p.private_data = &g;
  p.private_data_len = sizeof g;
  return p;
}

// ------------------------------------------------------------------------------------ server

// The client queries the server's state with one byte over a socket pair.
constexpr char kUsageQuery = 'u';
struct ServerState {
  Usage usage;
  int64_t open = 0;
  int64_t most_open = 0;
};
std::atomic<int64_t> open_now{0};
std::atomic<int64_t> most_open{0};

void serve_queries(int control) {
  char query = 0;
  while (read(control, &query, 1) == 1) {
    const ServerState state{usage_now(), open_now.load(), most_open.exchange(open_now.load())};
    if (write(control, &state, sizeof state) != sizeof state) break;
  }
  std::_Exit(0);  // the client has ended
}

void accept_request(const rdma_cm_event& event, ibv_cq*& cq) {
  auto c = std::make_unique<Connection>();
  c->id = event.id;
  if (!cq && !(cq = ibv_create_cq(event.id->verbs, 16, nullptr, nullptr, 0)))
    fail_errno("ibv_create_cq");
  make_queue_pair(*c, cq);
  PrivateData reply = private_data_of(event);
  reply.address = reinterpret_cast<uintptr_t>(&c->cell);
  reply.rkey = c->mr ? c->mr->rkey : 0;
  rdma_conn_param parameters = parameters_with(reply);
  if (rdma_accept(event.id, &parameters) != 0) fail_errno("rdma_accept");
  event.id->context = c.release();
}

[[noreturn]] void serve(int control) {
  rdma_event_channel* channel = rdma_create_event_channel();
  rdma_cm_id* listener = nullptr;
  rdma_addrinfo hints{}, *self = nullptr;
  hints.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST;
  hints.ai_port_space = RDMA_PS_TCP;
  if (!channel) fail_errno("rdma_create_event_channel");
  if (rdma_getaddrinfo(options.address.c_str(), nullptr, &hints, &self) != 0)
    fail("%s is not an address", options.address.c_str());
  if (rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP) != 0 ||
      rdma_bind_addr(listener, self->ai_src_addr) != 0 || rdma_listen(listener, 4096) != 0)
    fail_errno("cannot listen");
  rdma_freeaddrinfo(self);
  const uint16_t port = be16toh(rdma_get_src_port(listener));
  if (port == 0) fail("no ephemeral port");
  if (write(control, &port, sizeof port) != sizeof port) std::_Exit(0);
  std::thread(serve_queries, control).detach();

  ibv_cq* cq = nullptr;  // shared by all connections; the server posts no requests
  for (;;) {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(channel, &event) != 0) fail_errno("rdma_get_cm_event");
    rdma_cm_id* id = event->id;
    const rdma_cm_event_type type = event->event;
    switch (type) {
      case RDMA_CM_EVENT_CONNECT_REQUEST:
        accept_request(*event, cq);
        break;
      case RDMA_CM_EVENT_ESTABLISHED: {
        const int64_t now = ++open_now;
        if (now > most_open.load()) most_open = now;  // only this thread raises it
        break;
      }
      case RDMA_CM_EVENT_DISCONNECTED:
        --open_now;
        break;
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        break;
      default:
        fail("%s, status %d", rdma_event_str(type), event->status);
    }
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_DISCONNECTED) {
      rdma_disconnect(id);
      destroy(std::unique_ptr<Connection>(static_cast<Connection*>(id->context)));
    }
  }
}

// ------------------------------------------------------------------------------------ client

// One thread's event channel, completion queue and open connections. The oldest closes first.
class Opener {
 public:
  explicit Opener(const sockaddr* server) : server_(server) {
    if (!(channel_ = rdma_create_event_channel())) fail_errno("rdma_create_event_channel");
  }
  ~Opener() {
    if (cq_) ibv_destroy_cq(cq_);
    rdma_destroy_event_channel(channel_);
  }
  Opener(const Opener&) = delete;
  Opener& operator=(const Opener&) = delete;

  size_t open_count() const { return open_.size(); }

  void open_one(uint64_t number) {
    auto c = std::make_unique<Connection>();
    if (rdma_create_id(channel_, &c->id, nullptr, RDMA_PS_TCP) != 0) fail_errno("rdma_create_id");
    sockaddr_storage to{};
    std::memcpy(&to, server_,
                server_->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    if (rdma_resolve_addr(c->id, nullptr, reinterpret_cast<sockaddr*>(&to), 5000) != 0)
      fail_errno("rdma_resolve_addr");
    rdma_ack_cm_event(await(c->id, RDMA_CM_EVENT_ADDR_RESOLVED));
    if (rdma_resolve_route(c->id, 5000) != 0) fail_errno("rdma_resolve_route");
    rdma_ack_cm_event(await(c->id, RDMA_CM_EVENT_ROUTE_RESOLVED));
    if (!cq_ && !(cq_ = ibv_create_cq(c->id->verbs, 16, nullptr, nullptr, 0)))
      fail_errno("ibv_create_cq");
    make_queue_pair(*c, cq_);
    const PrivateData data{.number = number};
    rdma_conn_param parameters = parameters_with(data);
    if (rdma_connect(c->id, &parameters) != 0) fail_errno("rdma_connect");
    rdma_cm_event* established = await(c->id, RDMA_CM_EVENT_ESTABLISHED);
    const PrivateData reply = private_data_of(*established);
    rdma_ack_cm_event(established);
    if (reply.number != number) fail("connection %lu got the reply to %lu", number, reply.number);
    if (options.data) check_data(*c, reply, number);
    open_.push_back(std::move(c));
  }

  void close_one() {
    std::unique_ptr<Connection> c = std::move(open_.front());
    open_.pop_front();
    if (rdma_disconnect(c->id) != 0) fail_errno("rdma_disconnect");
    rdma_ack_cm_event(await(c->id, RDMA_CM_EVENT_DISCONNECTED));
    destroy(std::move(c));
  }

 private:
  rdma_cm_event* await(rdma_cm_id* id, rdma_cm_event_type wanted) {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(channel_, &event) != 0) fail_errno("rdma_get_cm_event");
    if (event->id != id || event->event != wanted)
      fail("%s, status %d, %s instead of %s", rdma_event_str(event->event), event->status,
           event->id == id ? "this connection" : "another connection", rdma_event_str(wanted));
    return event;
  }

  // WRITEs the number to the server's cell and READs it back.
  void check_data(Connection& c, const PrivateData& remote, uint64_t number) {
    ibv_sge local{reinterpret_cast<uintptr_t>(&c.cell), sizeof c.cell, c.mr->lkey};
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
      c.cell = opcode == IBV_WR_RDMA_WRITE ? number : ~number;
      ibv_send_wr request{}, *bad = nullptr;
      request.sg_list = &local;
      request.num_sge = 1;
      request.opcode = opcode;
      request.send_flags = IBV_SEND_SIGNALED;
      request.wr.rdma.remote_addr = remote.address;
      request.wr.rdma.rkey = remote.rkey;
      if ((errno = ibv_post_send(c.id->qp, &request, &bad)) != 0) fail_errno("ibv_post_send");
      ibv_wc done{};
      while (ibv_poll_cq(c.id->qp->send_cq, 1, &done) == 0) std::this_thread::yield();
      if (done.status != IBV_WC_SUCCESS)
        fail("connection %lu: %s", number, ibv_wc_status_str(done.status));
    }
    if (c.cell != number) fail("connection %lu read back %lu", number, c.cell);
  }

  const sockaddr* server_;
  rdma_event_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  std::deque<std::unique_ptr<Connection>> open_;
};

// Opens and closes `connections`; at one moment `options.open` of them are open. Returns the time
// in seconds.
double flood(const sockaddr* server, long connections, uint64_t& numbers) {
  const long quota = (options.open + options.threads - 1) / options.threads;
  std::atomic<long> remaining{connections - quota * options.threads};
  std::atomic<uint64_t> next{numbers};
  std::barrier all_are_open(options.threads);
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (long i = 0; i < options.threads; ++i) {
    threads.emplace_back([&] {
      Opener opener(server);
      for (long n = 0; n < quota; ++n) opener.open_one(next++);
      all_are_open.arrive_and_wait();
      while (remaining.fetch_sub(1) > 0) {
        opener.open_one(next++);
        opener.close_one();
      }
      while (opener.open_count() > 0) opener.close_one();
    });
  }
  for (std::thread& t : threads) t.join();
  const std::chrono::duration<double> took = Clock::now() - start;
  numbers = next;
  return took.count();
}

// ------------------------------------------------------------------------------- leak check

struct Snapshot {
  Usage client;
  ServerState server;
  std::string objects;  // counts in both processes, by the names of verbena counters
};

std::string objects_of(pid_t process) {
  if (options.verbena.empty()) return {};
  const std::string command =
      options.verbena + " counters --all " + std::to_string(process) + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) fail_errno(command.c_str());
  std::string found, everything;
  char line[256], name[64];
  long value = 0;
  while (std::fgets(line, sizeof line, pipe)) {
    everything += line;
    if (std::sscanf(line, " %63s %ld", name, &value) == 2 &&
        (!std::strcmp(name, "queue_pairs") || !std::strcmp(name, "memory_keys")))
      found += " " + std::string(name) + " " + std::to_string(value);
  }
  if (pclose(pipe) != 0 || found.find("queue_pairs") == std::string::npos)
    fail("%s: %s", command.c_str(), everything.c_str());
  return found;
}

Snapshot take_snapshot(int control, pid_t server) {
  Snapshot h;
  if (write(control, &kUsageQuery, 1) != 1 ||
      recv(control, &h.server, sizeof h.server, MSG_WAITALL) != sizeof h.server)
    fail("the server has ended");
  h.objects = "client" + objects_of(getpid()) + ", server" + objects_of(server);
  h.client = usage_now();
  return h;
}

bool returned(const Usage& now, const Usage& before) {
  return now.descriptors <= before.descriptors && now.heap <= before.heap + kHeapSlack &&
         now.rss <= before.rss + kRssSlack;
}

void print(const char* when, const Snapshot& h) {
  const auto kib = [](int64_t bytes) { return static_cast<long>(bytes / 1024); };
  std::printf(
      "%-7s client: %ld descriptors, heap %ld KiB, RSS %ld KiB; server: %ld descriptors, "
      "heap %ld KiB, RSS %ld KiB\n        %s\n",
      when, static_cast<long>(h.client.descriptors), kib(h.client.heap), kib(h.client.rss),
      static_cast<long>(h.server.usage.descriptors), kib(h.server.usage.heap),
      kib(h.server.usage.rss), h.objects.c_str());
}

struct Cleanup {
  Snapshot last;
  bool complete;
};

// Waits until the resources of the last round are free; `before` is null after the first round.
Cleanup await_cleanup(int control, pid_t server, const Snapshot* before) {
  const auto deadline = Clock::now() + kCleanupTimeout;
  Snapshot previous = take_snapshot(control, server);
  const int64_t peak = previous.server.most_open;
  for (;;) {
    std::this_thread::sleep_for(500ms);
    Snapshot now = take_snapshot(control, server);
    now.server.most_open = peak;
    const bool released = before ? returned(now.client, before->client) &&
                                       returned(now.server.usage, before->server.usage) &&
                                       now.objects == before->objects
                                 : now.client.heap == previous.client.heap &&
                                       now.server.usage.heap == previous.server.usage.heap;
    if (released && now.server.open == 0) return {now, true};
    if (Clock::now() > deadline) return {now, false};
    previous = now;
  }
}

// Memory pools may grow; descriptors, queue pairs, keys and connections may not.
bool only_memory_grew(const Snapshot& before, const Snapshot& after) {
  return after.client.descriptors <= before.client.descriptors &&
         after.server.usage.descriptors <= before.server.usage.descriptors &&
         after.objects == before.objects && after.server.open == 0;
}

[[noreturn]] void fail_by_leak(const Cleanup& cleanup, const char* when) {
  fail("resources were not freed within %ld s %s (%ld connections open)",
       static_cast<long>(std::chrono::seconds(kCleanupTimeout).count()), when,
       static_cast<long>(cleanup.last.server.open));
}

void run_client(int control, pid_t server) {
  uint16_t port = 0;
  if (recv(control, &port, sizeof port, MSG_WAITALL) != sizeof port)
    fail("the server did not start");
  rdma_addrinfo hints{}, *to = nullptr;
  hints.ai_flags = RAI_NUMERICHOST;
  hints.ai_port_space = RDMA_PS_TCP;
  if (rdma_getaddrinfo(options.address.c_str(), std::to_string(port).c_str(), &hints, &to) != 0)
    fail("%s is not an address", options.address.c_str());

  uint64_t numbers = 1;
  flood(to->ai_dst_addr, options.connections, numbers);
  Cleanup cleanup = await_cleanup(control, server, nullptr);
  print("before", cleanup.last);
  if (!cleanup.complete) fail_by_leak(cleanup, "after the first round");

  uint64_t first = 0;
  double seconds = 0;
  for (int round = 1;; ++round) {
    const Snapshot before = cleanup.last;
    first = numbers;
    seconds = flood(to->ai_dst_addr, options.connections, numbers);
    cleanup = await_cleanup(control, server, &before);
    print("after", cleanup.last);
    if (cleanup.complete) break;
    if (!only_memory_grew(before, cleanup.last)) fail_by_leak(cleanup, "in one round");
    if (round == kMaxRounds) fail_by_leak(cleanup, "in every round");
  }
  const Snapshot& after = cleanup.last;
  const auto made = static_cast<double>(numbers - first);
  if (after.server.most_open < options.open)
    fail("only %ld were open at once", static_cast<long>(after.server.most_open));
  std::printf("%.0f connections, %ld threads, %ld open at once%s%s: %.2f s\n", made,
              options.threads, static_cast<long>(after.server.most_open),
              options.data ? ", data checked" : "", options.own_queues ? ", own queues" : "",
              seconds);
  std::printf("connections per second: %.0f\n", made / seconds);
  rdma_freeaddrinfo(to);
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (int option; (option = getopt(argc, argv, "c:t:o:a:dqv:")) != -1;) {
    switch (option) {
      case 'c':
        options.connections = std::atol(optarg);
        break;
      case 't':
        options.threads = std::atol(optarg);
        break;
      case 'o':
        options.open = std::atol(optarg);
        break;
      case 'a':
        options.address = optarg;
        break;
      case 'd':
        options.data = true;
        break;
      case 'q':
        options.own_queues = true;
        break;
      case 'v':
        options.verbena = optarg;
        break;
      default:
        return 2;
    }
  }
  if (options.threads < 1 || options.open < options.threads || options.connections < options.open) {
    std::fprintf(stderr,
                 "cm_flood: the options must satisfy connections >= open >= threads >= 1\n");
    return 2;
  }
  raise_descriptor_limit();
  std::signal(SIGPIPE, SIG_IGN);
  int control[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) != 0) fail_errno("socketpair");
  const pid_t server = fork();  // before either side touches RDMA
  if (server < 0) fail_errno("fork");
  if (server == 0) {
    side = "server";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(control[0]);
    serve(control[1]);
  }
  close(control[1]);
  run_client(control[0], server);
  close(control[0]);  // the server ends then
  int status = 0;
  if (waitpid(server, &status, 0) != server || status != 0)
    fail("the server's status is %d", status);
  return 0;
}
