// One of many processes that exchange messages all the time. Each listens, connects to three
// others, and exchanges a checked WRITE and SEND with them every 50 ms; a lost connection is
// established again as soon as the peer accepts. It prints its events:
//   joined INDEX PID      this process accepted a connection of ours
//   lost INDEX PID WHY    the connection to it ended
//   wrong ...             an error; the program exits
// On "report" on standard input it prints "count INDEX PID MESSAGES" for each connection, then
// "done"; after "stop" it prints no lost connections, and at the end of its input it closes all
// connections and exits.
//   g++ -std=c++20 crowd.cc -lrdmacm -libverbs -o crowd && crowd INDEX MEMBERS FIRST-PORT
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kBetweenMessages = 50ms;
constexpr auto kBetweenConnects = 200ms;
constexpr auto kReplyTimeout = 20s;

struct Identity {  // private data of both sides
  uint32_t index;
  uint32_t pid;
  uint64_t address;  // the accepting side's memory
  uint32_t rkey;
};

struct Message {
  uint32_t index;
  uint32_t pid;
  uint64_t sequence;
  uint8_t pattern[1000];

  void fill(uint32_t from, uint32_t from_pid, uint64_t number) {
    index = from;
    pid = from_pid;
    sequence = number;
    for (size_t i = 0; i < sizeof pattern; ++i) pattern[i] = value(i);
  }
  bool holds(uint32_t from, uint32_t from_pid, uint64_t number) const {
    if (index != from || pid != from_pid || sequence != number) return false;
    for (size_t i = 0; i < sizeof pattern; ++i) {
      if (pattern[i] != value(i)) return false;
    }
    return true;
  }
  uint8_t value(size_t i) const { return static_cast<uint8_t>(pid * 7 + sequence * 13 + i); }
};

[[noreturn]] void wrong(const std::string& what) {
  std::printf("wrong %s (errno %d)\n", what.c_str(), errno);
  std::exit(1);
}
void must(bool holds, const char* what) {
  if (!holds) wrong(what);
}

struct Link {
  rdma_cm_id* id = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  bool active = false;  // we connect
  bool connected = false;
  bool awaits_reply = false;
  bool sending = false;  // the last send is not completed: its buffer and queue entry are in use
  bool must_reply = false;
  Identity peer{};
  uint64_t sequence = 0;
  Clock::time_point due;    // when to send the next, or to connect again
  Clock::time_point since;  // when the message in flight was sent
  struct {
    Message out, in, written;
  } memory{};
};

class Member {
 public:
  Member(uint32_t index, uint32_t members, uint16_t first_port)
      : index_(index), members_(members), first_port_(first_port) {}

  void run() {
    channel_ = rdma_create_event_channel();
    must(channel_ != nullptr, "rdma_create_event_channel");
    ::fcntl(channel_->fd, F_SETFL, O_NONBLOCK);
    listen();
    for (const uint32_t step : {1u, 5u, 21u}) {
      Link& link = links_.emplace_back();
      link.active = true;
      link.peer.index = (index_ + step) % members_;
    }
    while (turn()) {
    }
    for (Link& link : links_) disconnect(link);
    rdma_destroy_id(listener_);
    rdma_destroy_event_channel(channel_);
  }

 private:
  sockaddr_in address_of(uint32_t index) const {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(first_port_ + index));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
  }

  void listen() {
    sockaddr_in own = address_of(index_);
    must(rdma_create_id(channel_, &listener_, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
    must(rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&own)) == 0, "rdma_bind_addr");
    must(rdma_listen(listener_, 64) == 0, "rdma_listen");
  }

  // False: the input has ended.
  bool turn() {
    pollfd waits[] = {{channel_->fd, POLLIN, 0},
                      {0, POLLIN, 0},
                      {completions_ != nullptr ? completions_->fd : -1, POLLIN, 0}};
    ::poll(waits, 3, 20);
    rdma_cm_event* event = nullptr;
    while (rdma_get_cm_event(channel_, &event) == 0) on_event(event);
    for (Link& link : links_) take_completions(link);
    const auto now = Clock::now();
    for (Link& link : links_) tick(link, now);
    links_.remove_if([](const Link& l) { return !l.active && l.id == nullptr; });
    return (waits[1].revents & (POLLIN | POLLHUP)) == 0 || handle_command();
  }

  bool handle_command() {
    char words[64] = {};
    const ssize_t n = ::read(0, words, sizeof words - 1);
    if (n <= 0) return false;
    if (std::strstr(words, "stop") != nullptr) stopping_ = true;
    for (const Link& link : links_) {
      if (link.active && link.connected) {
        std::printf("count %u %u %lu\n", link.peer.index, link.peer.pid, link.sequence);
      }
    }
    std::printf("done\n");
    return true;
  }

  void tick(Link& link, Clock::time_point now) {
    if (link.awaits_reply && now - link.since > kReplyTimeout) {
      wrong("no reply from " + std::to_string(link.peer.index) + " " +
            std::to_string(link.peer.pid));
    }
    if (!link.active || now < link.due) return;
    if (link.id == nullptr && !stopping_) connect(link);
    if (link.connected && !link.awaits_reply && !link.sending) send(link, now);
  }

  void connect(Link& link) {
    sockaddr_in to = address_of(link.peer.index);
    must(rdma_create_id(channel_, &link.id, &link, RDMA_PS_TCP) == 0, "rdma_create_id");
    must(rdma_resolve_addr(link.id, nullptr, reinterpret_cast<sockaddr*>(&to), 5000) == 0,
         "rdma_resolve_addr");
  }

  void prepare(Link& link) {
    ibv_context* const verbs = link.id->verbs;
    if (completions_ == nullptr) {
      completions_ = ibv_create_comp_channel(verbs);
      must(completions_ != nullptr, "ibv_create_comp_channel");
      ::fcntl(completions_->fd, F_SETFL, O_NONBLOCK);
    }
    link.cq = ibv_create_cq(verbs, 16, &link, completions_, 0);
    must(link.cq != nullptr, "ibv_create_cq");
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = link.cq;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {4, 4, 1, 1, 0};
    must(rdma_create_qp(link.id, nullptr, &wanted) == 0, "rdma_create_qp");
    link.mr = ibv_reg_mr(link.id->qp->pd, &link.memory, sizeof link.memory,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    must(link.mr != nullptr, "ibv_reg_mr");
    must(ibv_req_notify_cq(link.cq, 0) == 0, "ibv_req_notify_cq");
    receive(link);
  }

  rdma_conn_param parameters(Link& link) {
    mine_ = {index_, static_cast<uint32_t>(::getpid()),
             reinterpret_cast<uint64_t>(&link.memory.written), link.mr->rkey};
    rdma_conn_param p{};
    p.private_data = &mine_;
    p.private_data_len = sizeof mine_;
    p.responder_resources = p.initiator_depth = 1;
    p.retry_count = p.rnr_retry_count = 7;
    return p;
  }

  void on_event(rdma_cm_event* event) {
    rdma_cm_id* const id = event->id;
    Link* link = static_cast<Link*>(id->context);
    const rdma_cm_event_type kind = event->event;
    const int status = event->status;
    Identity received{};
    if (event->param.conn.private_data != nullptr &&
        event->param.conn.private_data_len >= sizeof received) {
      std::memcpy(&received, event->param.conn.private_data, sizeof received);
    }
    rdma_ack_cm_event(event);
    switch (kind) {
      case RDMA_CM_EVENT_ADDR_RESOLVED:
        must(rdma_resolve_route(id, 5000) == 0, "rdma_resolve_route");
        break;
      case RDMA_CM_EVENT_ROUTE_RESOLVED: {
        prepare(*link);
        rdma_conn_param p = parameters(*link);
        if (rdma_connect(id, &p) != 0) end(*link, "cannot connect");
        break;
      }
      case RDMA_CM_EVENT_CONNECT_REQUEST: {
        link = &links_.emplace_back();
        link->id = id;
        link->peer = received;
        id->context = link;
        prepare(*link);
        rdma_conn_param p = parameters(*link);
        if (rdma_accept(id, &p) != 0) end(*link, "cannot accept");
        break;
      }
      case RDMA_CM_EVENT_ESTABLISHED:
        link->connected = true;
        if (link->active) {
          must(received.index == link->peer.index, "another process accepted");
          link->peer = received;
          link->sequence = 0;
          std::printf("joined %u %u\n", received.index, received.pid);
        }
        break;
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        break;
      default:
        if (link != nullptr) {
          end(*link, std::string(rdma_event_str(kind)) + " " + std::to_string(status));
        }
    }
  }

  void send(Link& link, Clock::time_point now) {
    Message& out = link.memory.out;
    if (link.active) out.fill(index_, static_cast<uint32_t>(::getpid()), ++link.sequence);
    link.awaits_reply = link.active;
    link.sending = true;
    link.since = now;
    ibv_sge sge{reinterpret_cast<uint64_t>(&out), sizeof out, link.mr->lkey};
    ibv_send_wr message{}, write{}, *bad = nullptr;
    message.opcode = IBV_WR_SEND;
    message.sg_list = write.sg_list = &sge;
    message.num_sge = write.num_sge = 1;
    message.send_flags = IBV_SEND_SIGNALED;
    write.opcode = IBV_WR_RDMA_WRITE;
    write.wr.rdma.remote_addr = link.peer.address;
    write.wr.rdma.rkey = link.peer.rkey;
    write.next = &message;
    // The accepting side echoes the message; the active side writes the message, then sends it.
    if (ibv_post_send(link.id->qp, link.active ? &write : &message, &bad) != 0) end(link, "post");
  }

  void receive(Link& link) {
    ibv_sge sge{reinterpret_cast<uint64_t>(&link.memory.in), sizeof(Message), link.mr->lkey};
    ibv_recv_wr wanted{}, *bad = nullptr;
    wanted.sg_list = &sge;
    wanted.num_sge = 1;
    must(ibv_post_recv(link.id->qp, &wanted, &bad) == 0, "ibv_post_recv");
  }

  void take_completions(Link& link) {
    if (link.cq == nullptr) return;
    void* context = nullptr;
    ibv_cq* cq = nullptr;
    while (ibv_get_cq_event(completions_, &cq, &context) == 0) {
      ibv_ack_cq_events(cq, 1);
      must(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
    }
    ibv_wc wc;
    while (link.cq != nullptr && ibv_poll_cq(link.cq, 1, &wc) > 0) {
      if (wc.status != IBV_WC_SUCCESS) {
        end(link, ibv_wc_status_str(wc.status));
      } else if (wc.opcode == IBV_WC_RECV) {
        on_message(link);
      } else {
        link.sending = false;
        if (link.must_reply) reply(link);
      }
    }
  }

  void on_message(Link& link) {
    const auto now = Clock::now();
    const Message& in = link.memory.in;
    if (link.active) {
      must(in.holds(index_, static_cast<uint32_t>(::getpid()), link.sequence), "reply");
      link.awaits_reply = false;
      link.due = now + kBetweenMessages;
      receive(link);
      return;
    }
    ++link.sequence;
    must(in.holds(link.peer.index, link.peer.pid, link.sequence), "message");
    must(std::memcmp(&link.memory.written, &in, sizeof in) == 0, "written memory");
    link.must_reply = true;
    if (!link.sending) reply(link);
  }

  void reply(Link& link) {
    link.must_reply = false;
    link.memory.out = link.memory.in;
    receive(link);
    send(link, Clock::now());
  }

  void end(Link& link, const std::string& why) {
    if (link.active && link.connected && !stopping_) {
      std::printf("lost %u %u %s\n", link.peer.index, link.peer.pid, why.c_str());
    }
    disconnect(link);
    link.due = Clock::now() + kBetweenConnects;
  }

  void disconnect(Link& link) {
    if (link.id == nullptr) return;
    if (link.connected) rdma_disconnect(link.id);
    if (link.id->qp != nullptr) rdma_destroy_qp(link.id);
    if (link.mr != nullptr) ibv_dereg_mr(link.mr);
    if (link.cq != nullptr) ibv_destroy_cq(link.cq);
    rdma_destroy_id(link.id);
    link.id = nullptr;
    link.mr = nullptr;
    link.cq = nullptr;
    link.connected = link.awaits_reply = link.sending = link.must_reply = false;
  }

  const uint32_t index_;
  const uint32_t members_;
  const uint16_t first_port_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
  ibv_comp_channel* completions_ = nullptr;
  std::list<Link> links_;
  Identity mine_{};
  bool stopping_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Member(static_cast<uint32_t>(std::atoi(argv[1])), static_cast<uint32_t>(std::atoi(argv[2])),
         static_cast<uint16_t>(std::atoi(argv[3])))
      .run();
}
