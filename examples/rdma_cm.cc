// An RDMA connection set up by rdma_cm. The two sides address each other by IP address and port, as
// with TCP. The connection manager exchanges the data of the queue pairs in its own messages
// (verbena run --pcap shows them). The application's data, here the location of the server's
// memory, travels in these messages as private data.
//
//   g++ -std=c++20 rdma_cm.cc -lrdmacm -libverbs -o rdma_cm
//   ./rdma_cm                  the server: waits for one client
//   ./rdma_cm 192.0.2.1        the client: its server's address
#include <rdma/rdma_cma.h>

#include "endpoint.h"

static constexpr char kPort[] = "7471";
static rdma_event_channel* channel;  // reports events of ids (an id is rdma_cm's endpoint)

// Waits for the next event, which must be `wanted`. Its data stay valid until it is acknowledged.
static rdma_cm_event* await_event(rdma_cm_event_type wanted) {
  rdma_cm_event* event = nullptr;
  check(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event", "See the errno.");
  std::printf("  event: %s\n", rdma_event_str(event->event));
  errno = event->status < 0 ? -event->status : 0;
  check(event->event == wanted, rdma_event_str(event->event),
        event->event == RDMA_CM_EVENT_REJECTED
            ? "No program listens there: is the server started?"
            : "Can the server's address be pinged? Does a firewall block UDP port 4791?");
  return event;
}

static rdma_addrinfo* resolve_name(const char* address, int flags) {
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
        "`ibv_devinfo -v` shows the device's limits.");
  endpoint.qp = id->qp;
}

static void serve() {
  std::printf("1. bind an id to all addresses and port %s, listen\n", kPort);
  rdma_addrinfo* any = resolve_name("::", RAI_PASSIVE);  // accepts IPv4, too
  rdma_cm_id* listener = nullptr;
  check(rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP) == 0 &&
            rdma_bind_addr(listener, any->ai_src_addr) == 0 && rdma_listen(listener, 1) == 0,
        "listen", "Does another RDMA program use the port? Without hardware: verbena run -- ...");
  rdma_freeaddrinfo(any);

  std::printf("2. wait for a connection request, which has a new id\n");
  rdma_cm_event* request = await_event(RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_cm_id* id = request->id;
  rdma_conn_param reply{};
  // The number of outstanding READs in each direction.
  reply.responder_resources = request->param.conn.responder_resources;
  reply.initiator_depth = request->param.conn.initiator_depth;
  reply.rnr_retry_count = 7;  // without limit while no receive is posted
  rdma_ack_cm_event(request);
  rdma_destroy_id(listener);  // further connection requests are rejected
  {
    std::printf("3. create a queue pair, post a receive, accept\n");
    Endpoint endpoint(id->verbs, channel->fd);
    make_queue_pair(endpoint, id);
    endpoint.post_receive();  // before the client can send
    Shared mine = endpoint.mine();
    reply.private_data = &mine;
    reply.private_data_len = sizeof mine;
    check(rdma_accept(id, &reply) == 0, "rdma_accept", "See the errno.");
    rdma_ack_cm_event(await_event(RDMA_CM_EVENT_ESTABLISHED));
    endpoint.run_server_part();
    rdma_ack_cm_event(await_event(RDMA_CM_EVENT_DISCONNECTED));
    std::printf("  in memory now: \"%.64s\"\n", endpoint.memory.shared);
    std::printf("6. destroy everything in reverse order\n");
    rdma_disconnect(id);
    rdma_destroy_qp(id);
  }
  rdma_destroy_id(id);
}

static void run_client(const char* server_address) {
  std::printf("1. find the device and the route to %s\n", server_address);
  rdma_addrinfo* server = resolve_name(server_address, 0);
  rdma_cm_id* id = nullptr;
  check(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0 &&
            rdma_resolve_addr(id, nullptr, server->ai_dst_addr, 2000 /* ms */) == 0,
        "rdma_resolve_addr", "`ibv_devinfo` lists devices. Without hardware: verbena run -- ...");
  rdma_freeaddrinfo(server);
  rdma_ack_cm_event(await_event(RDMA_CM_EVENT_ADDR_RESOLVED));
  check(rdma_resolve_route(id, 2000 /* ms */) == 0, "rdma_resolve_route", "See the errno.");
  rdma_ack_cm_event(await_event(RDMA_CM_EVENT_ROUTE_RESOLVED));
  {
    std::printf("2. create a queue pair\n");
    Endpoint endpoint(id->verbs, channel->fd);
    make_queue_pair(endpoint, id);

    std::printf("3. connect: rdma_cm moves the queue pair through INIT and RTR to RTS\n");
    rdma_conn_param parameters{};
    parameters.responder_resources = 1;  // outstanding READs from the server
    parameters.initiator_depth = 1;      // outstanding READs to the server
    parameters.retry_count = 7;          // retransmits without a response
    parameters.rnr_retry_count = 7;
    check(rdma_connect(id, &parameters) == 0, "rdma_connect", "See the errno.");
    rdma_cm_event* established = await_event(RDMA_CM_EVENT_ESTABLISHED);
    Shared theirs{};
    check(established->param.conn.private_data_len >= sizeof theirs, "the private data is missing",
          "Both sides must be this program.");
    std::memcpy(&theirs, established->param.conn.private_data, sizeof theirs);
    rdma_ack_cm_event(established);
    endpoint.run_client_part(theirs);

    std::printf("6. disconnect, destroy everything in reverse order\n");
    check(rdma_disconnect(id) == 0, "rdma_disconnect", "See the errno.");
    rdma_ack_cm_event(await_event(RDMA_CM_EVENT_DISCONNECTED));
    rdma_destroy_qp(id);
  }
  rdma_destroy_id(id);
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also into a file
  channel = rdma_create_event_channel();
  check(channel, "rdma_create_event_channel", "Without hardware: verbena run -- ./rdma_cm ...");
  argc > 1 ? run_client(argv[1]) : serve();
  rdma_destroy_event_channel(channel);
}
