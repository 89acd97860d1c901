// The same as oob_tcp.cc, connected by rdma_cm: the two sides name each other by IP address and
// port, as with TCP, and the connection manager exchanges queue pair numbers and sequence numbers
// in messages of its own (to see them: verbena run --pcap). What the application has to say, here
// the address and key of its memory, rides along as private data.
//
//   g++ -std=c++20 rdma_cm.cc -lrdmacm -libverbs -o rdma_cm
//   ./rdma_cm                  the server: waits for one client
//   ./rdma_cm 192.0.2.1        the client: its server's address
#include <endian.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr char kPort[] = "7471";
constexpr size_t kRoom = 64;               // bytes for one text
char memory[3 * kRoom] = {};               // what the NIC may reach: three texts
char* const kOutgoing = memory;            // we send, or write, or read, from or to here
char* const kReceived = memory + kRoom;    // the other side's SEND arrives here
char* const kShared = memory + 2 * kRoom;  // the client WRITEs and READs this of the server's

// The server's private data: where its memory is and the key that permits WRITE and READ. In
// network byte order, for the client may be another kind of machine.
struct Shared {
  uint64_t address;
  uint32_t rkey;
  uint32_t size;
};

[[noreturn]] void fail(const char* what, const char* advice) {
  std::fprintf(stderr, "FAILED: %s%s%s\n  %s\n", what, errno ? ": " : "",
               errno ? std::strerror(errno) : "", advice);
  std::exit(1);
}

// --- events: rdma_cm answers on a channel what happens to an id (its word for an endpoint) ---

rdma_cm_event* await_event(rdma_event_channel* channel, rdma_cm_event_type wanted) {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel, &event) != 0) fail("rdma_get_cm_event", "See the errno.");
  std::printf("  event: %s\n", rdma_event_str(event->event));
  if (event->event != wanted) {
    errno = event->status < 0 ? -event->status : 0;
    fail(rdma_event_str(event->event),
         event->event == RDMA_CM_EVENT_REJECTED
             ? "Nobody listens there: is the server started?"
             : "Can the server's address be pinged? Does a firewall block UDP port 4791?");
  }
  return event;  // the caller acknowledges it: until then what it points at stays valid
}

// --- what both sides need on top of an id: memory, a queue pair with its completion queue ---

struct Endpoint {
  rdma_cm_id* id;
  ibv_mr* mr;

  explicit Endpoint(rdma_cm_id* of) : id(of) {
    ibv_qp_init_attr wanted{};
    wanted.cap = {.max_send_wr = 2,
                  .max_recv_wr = 2,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = 0};
    wanted.qp_type = IBV_QPT_RC;  // reliable connection
    // No protection domain and no completion queues are given: it makes its own.
    if (rdma_create_qp(id, nullptr, &wanted) != 0)
      fail("rdma_create_qp", "`ibv_devinfo -v` tells the device's limits.");
    mr = ibv_reg_mr(id->pd, memory, sizeof memory,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    if (!mr) fail("ibv_reg_mr", "Too little memory may be locked? See `ulimit -l`.");
    std::printf("  device %s, queue pair 0x%06x\n", ibv_get_device_name(id->verbs->device),
                id->qp->qp_num);
  }

  ~Endpoint() {
    ibv_dereg_mr(mr);
    rdma_destroy_qp(id);
  }

  // Polls until the NIC has done one request.
  void await_completion(ibv_cq* cq, const char* of) const {
    ibv_wc done{};
    int count;
    while ((count = ibv_poll_cq(cq, 1, &done)) == 0) {
    }
    errno = 0;
    if (count < 0) fail("ibv_poll_cq", "That should not happen.");
    if (done.status != IBV_WC_SUCCESS)
      fail(ibv_wc_status_str(done.status), "`verbena run --log info` says what usually causes it.");
    std::printf("  completed: %s\n", of);
  }

  void post_receive() const {
    ibv_sge room{reinterpret_cast<uintptr_t>(kReceived), kRoom, mr->lkey};
    ibv_recv_wr receive{.wr_id = 0, .next = nullptr, .sg_list = &room, .num_sge = 1}, *bad;
    if ((errno = ibv_post_recv(id->qp, &receive, &bad)) != 0) fail("ibv_post_recv", "See there.");
  }

  // Posts one request and waits for its completion.
  void work(ibv_wr_opcode opcode, const char* name, const Shared& remote) const {
    ibv_sge local{reinterpret_cast<uintptr_t>(kOutgoing), kRoom, mr->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.sg_list = &local;
    request.num_sge = 1;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;        // tell us when it is done
    request.wr.rdma.remote_addr = remote.address;  // a SEND does not look at these two
    request.wr.rdma.rkey = remote.rkey;
    if ((errno = ibv_post_send(id->qp, &request, &bad)) != 0) fail("ibv_post_send", "See there.");
    await_completion(id->send_cq, name);
  }
};

rdma_addrinfo* look_up(const char* server_address, int flags) {
  rdma_addrinfo hints{}, *found = nullptr;
  hints.ai_flags = flags;
  hints.ai_port_space = RDMA_PS_TCP;  // reliable connections
  if (rdma_getaddrinfo(server_address, kPort, &hints, &found) != 0)
    fail("no such address", "Give the server's IP address, or a name that `getent hosts` knows.");
  return found;
}

// --- the two sides ---

void serve(rdma_event_channel* channel) {
  std::printf("1. bind an id to all addresses and port %s, listen\n", kPort);
  rdma_addrinfo* any = look_up("::", RAI_PASSIVE);  // which takes IPv4 as well
  rdma_cm_id* listener = nullptr;
  if (rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP) != 0 ||
      rdma_bind_addr(listener, any->ai_src_addr) != 0 || rdma_listen(listener, 1) != 0)
    fail("listen", "Does another RDMA program use the port? Without hardware: verbena run -- ...");
  rdma_freeaddrinfo(any);

  std::printf("2. a client asks: it comes as a new id\n");
  rdma_cm_event* request = await_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
  rdma_cm_id* id = request->id;
  rdma_conn_param param{};
  param.responder_resources = request->param.conn.responder_resources;  // READs that it may have
  param.initiator_depth = request->param.conn.initiator_depth;          // under way to us, and we
  param.rnr_retry_count = 7;
  rdma_ack_cm_event(request);
  {
    std::printf("3. make a queue pair, post a receive, accept\n");
    Endpoint endpoint(id);
    endpoint.post_receive();  // before the client can send
    Shared mine{htobe64(reinterpret_cast<uintptr_t>(kShared)), htobe32(endpoint.mr->rkey),
                htobe32(kRoom)};
    param.private_data = &mine;
    param.private_data_len = sizeof mine;
    if (rdma_accept(id, &param) != 0) fail("rdma_accept", "See the errno.");
    rdma_ack_cm_event(await_event(channel, RDMA_CM_EVENT_ESTABLISHED));

    std::printf("4. wait for the client's SEND\n");
    endpoint.await_completion(id->recv_cq, "RECV");
    std::printf("  received: \"%.64s\"\n", kReceived);
    std::printf("5. do nothing: WRITE and READ do not involve this side\n");
    rdma_ack_cm_event(await_event(channel, RDMA_CM_EVENT_DISCONNECTED));
    std::printf("  in memory now: \"%.64s\"\n", kShared);
    rdma_disconnect(id);
    std::printf("6. everything away, last made first\n");
  }
  rdma_destroy_id(id);
  rdma_destroy_id(listener);
}

void call(rdma_event_channel* channel, const char* server_address) {
  std::printf("1. find the device that leads to %s, and the way\n", server_address);
  rdma_addrinfo* server = look_up(server_address, 0);
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) != 0 ||
      rdma_resolve_addr(id, nullptr, server->ai_dst_addr, 2000 /* ms */) != 0)
    fail("rdma_resolve_addr", "`ibv_devinfo` lists devices. Without hardware: verbena run -- ...");
  rdma_freeaddrinfo(server);
  rdma_ack_cm_event(await_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
  if (rdma_resolve_route(id, 2000 /* ms */) != 0) fail("rdma_resolve_route", "See the errno.");
  rdma_ack_cm_event(await_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
  {
    std::printf("2. make a queue pair\n");
    Endpoint endpoint(id);

    std::printf("3. connect: it goes through INIT and RTR to RTS by itself\n");
    rdma_conn_param param{};
    param.responder_resources = 1;  // READs that the server may have under way to us,
    param.initiator_depth = 1;      // and we to it
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    if (rdma_connect(id, &param) != 0) fail("rdma_connect", "See the errno.");
    rdma_cm_event* established = await_event(channel, RDMA_CM_EVENT_ESTABLISHED);
    Shared theirs{};
    if (established->param.conn.private_data_len < sizeof theirs)
      fail("the server's private data is too short", "Both sides must be this program.");
    std::memcpy(&theirs, established->param.conn.private_data, sizeof theirs);
    theirs = {be64toh(theirs.address), be32toh(theirs.rkey), be32toh(theirs.size)};
    rdma_ack_cm_event(established);
    std::printf("  the server shares %u bytes, rkey 0x%08x\n", theirs.size, theirs.rkey);

    std::printf("4. SEND: the server has posted where to\n");
    std::snprintf(kOutgoing, kRoom, "hello, sent");
    endpoint.work(IBV_WR_SEND, "SEND", theirs);
    std::printf("5. WRITE into the server's memory, then READ it back\n");
    std::snprintf(kOutgoing, kRoom, "hello, written");
    endpoint.work(IBV_WR_RDMA_WRITE, "WRITE", theirs);
    std::memset(kOutgoing, 0, kRoom);
    endpoint.work(IBV_WR_RDMA_READ, "READ", theirs);
    std::printf("  read back: \"%.64s\"\n", kOutgoing);
    errno = 0;
    if (std::strcmp(kOutgoing, "hello, written") != 0) fail("other bytes came back", "A bug.");

    std::printf("6. disconnect, everything away, last made first\n");
    if (rdma_disconnect(id) != 0) fail("rdma_disconnect", "See the errno.");
    rdma_ack_cm_event(await_event(channel, RDMA_CM_EVENT_DISCONNECTED));
  }
  rdma_destroy_id(id);
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each step as it happens, also into a file
  rdma_event_channel* channel = rdma_create_event_channel();
  if (!channel) fail("rdma_create_event_channel", "Without hardware: verbena run -- ./rdma_cm ...");
  if (argc > 1) {
    call(channel, argv[1]);
  } else {
    serve(channel);
  }
  rdma_destroy_event_channel(channel);
}
