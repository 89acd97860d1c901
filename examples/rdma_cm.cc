// An RDMA connection made by rdma_cm: the two sides name each other by IP address and port, as with
// TCP, and the connection manager exchanges what queue pairs must know of each other in messages of
// its own (to see them: verbena run --pcap). What the application has to say, here where the
// server's memory is, rides along as private data.
//
//   g++ -std=c++20 rdma_cm.cc -lrdmacm -libverbs -o rdma_cm
//   ./rdma_cm                  the server: waits for one client
//   ./rdma_cm 192.0.2.1        the client: its server's address
#include <rdma/rdma_cma.h>

#include "endpoint.h"

static constexpr char kPort[] = "7471";
static rdma_event_channel* channel;  // tells what happens to ids (rdma_cm's word for an endpoint)

// The next event, which must be this one. Until it is acknowledged, what it points at stays valid.
static rdma_cm_event* await_event(rdma_cm_event_type wanted) {
  rdma_cm_event* event = nullptr;
  check(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event", "See the errno.");
  std::printf("  event: %s\n", rdma_event_str(event->event));
  errno = event->status < 0 ? -event->status : 0;
  check(event->event == wanted, rdma_event_str(event->event),
        event->event == RDMA_CM_EVENT_REJECTED
            ? "Nobody listens there: is the server started?"
            : "Can the server's address be pinged? Does a firewall block UDP port 4791?");
  return event;
}

static rdma_addrinfo* look_up(const char* address, int flags) {
  rdma_addrinfo hints{}, *found = nullptr;
  hints.ai_flags = flags;
  hints.ai_port_space = RDMA_PS_TCP;  // reliable connections
  check(rdma_getaddrinfo(address, kPort, &hints, &found) == 0, "no such address",
        "Give the server's IP address, or a name that `getent hosts` knows.");
  return found;
}

static void make_queue_pair(Endpoint& endpoint, rdma_cm_id* id) {
  ibv_qp_init_attr wanted = endpoint.queue_pair_wanted();
  check(rdma_create_qp(id, endpoint.pd, &wanted) == 0, "rdma_create_qp",
        "`ibv_devinfo -v` tells the device's limits.");
  endpoint.qp = id->qp;
}

static void serve() {
  std::printf("1. bind an id to all addresses and port %s, listen\n", kPort);
  rdma_addrinfo* any = look_up("::", RAI_PASSIVE);  // which takes IPv4 as well
  rdma_cm_id* listener = nullptr;
  check(rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP) == 0 &&
            rdma_bind_addr(listener, any->ai_src_addr) == 0 && rdma_listen(listener, 1) == 0,
        "listen", "Does another RDMA program use the port? Without hardware: verbena run -- ...");
  rdma_freeaddrinfo(any);

  std::printf("2. a client asks: it comes as a new id\n");
  rdma_cm_event* request = await_event(RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_cm_id* id = request->id;
  rdma_conn_param answer{};
  answer.responder_resources = request->param.conn.responder_resources;  // READs it may have under
  answer.initiator_depth = request->param.conn.initiator_depth;          // way to us, and we to it
  answer.rnr_retry_count = 7;  // for ever, while a receive is missing
  rdma_ack_cm_event(request);
  rdma_destroy_id(listener);  // one is enough: others who ask are refused
  {
    std::printf("3. make a queue pair, post a receive, accept\n");
    Endpoint endpoint(id->verbs, channel->fd);
    make_queue_pair(endpoint, id);
    endpoint.post_receive();  // before the client can send
    Shared mine = endpoint.mine();
    answer.private_data = &mine;
    answer.private_data_len = sizeof mine;
    check(rdma_accept(id, &answer) == 0, "rdma_accept", "See the errno.");
    rdma_ack_cm_event(await_event(RDMA_CM_EVENT_ESTABLISHED));
    endpoint.listen_to_client();
    rdma_ack_cm_event(await_event(RDMA_CM_EVENT_DISCONNECTED));
    std::printf("  in memory now: \"%.64s\"\n", endpoint.memory.shared);
    std::printf("6. everything away, last made first\n");
    rdma_disconnect(id);
    rdma_destroy_qp(id);
  }
  rdma_destroy_id(id);
}

static void call(const char* server_address) {
  std::printf("1. find the device that leads to %s, and the way\n", server_address);
  rdma_addrinfo* server = look_up(server_address, 0);
  rdma_cm_id* id = nullptr;
  check(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0 &&
            rdma_resolve_addr(id, nullptr, server->ai_dst_addr, 2000 /* ms */) == 0,
        "rdma_resolve_addr", "`ibv_devinfo` lists devices. Without hardware: verbena run -- ...");
  rdma_freeaddrinfo(server);
  rdma_ack_cm_event(await_event(RDMA_CM_EVENT_ADDR_RESOLVED));
  check(rdma_resolve_route(id, 2000 /* ms */) == 0, "rdma_resolve_route", "See the errno.");
  rdma_ack_cm_event(await_event(RDMA_CM_EVENT_ROUTE_RESOLVED));
  {
    std::printf("2. make a queue pair\n");
    Endpoint endpoint(id->verbs, channel->fd);
    make_queue_pair(endpoint, id);

    std::printf("3. connect: it goes through INIT and RTR to RTS by itself\n");
    rdma_conn_param wish{};
    wish.responder_resources = 1;  // READs that the server may have under way to us,
    wish.initiator_depth = 1;      // and we to it
    wish.retry_count = 7;          // how often to send again what is not answered
    wish.rnr_retry_count = 7;
    check(rdma_connect(id, &wish) == 0, "rdma_connect", "See the errno.");
    rdma_cm_event* established = await_event(RDMA_CM_EVENT_ESTABLISHED);
    Shared theirs{};
    check(established->param.conn.private_data_len >= sizeof theirs, "no private data of ours",
          "Both sides must be this program.");
    std::memcpy(&theirs, established->param.conn.private_data, sizeof theirs);
    rdma_ack_cm_event(established);
    endpoint.talk_to_server(theirs);

    std::printf("6. disconnect, everything away, last made first\n");
    check(rdma_disconnect(id) == 0, "rdma_disconnect", "See the errno.");
    rdma_ack_cm_event(await_event(RDMA_CM_EVENT_DISCONNECTED));
    rdma_destroy_qp(id);
  }
  rdma_destroy_id(id);
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each step as it happens, also into a file
  channel = rdma_create_event_channel();
  check(channel, "rdma_create_event_channel", "Without hardware: verbena run -- ./rdma_cm ...");
  argc > 1 ? call(argv[1]) : serve();
  rdma_destroy_event_channel(channel);
}
