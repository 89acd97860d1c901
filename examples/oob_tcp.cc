// An RDMA connection made by hand. Two queue pairs talk only after each knows the other's number,
// first packet sequence number and address. Here the two sides tell each other over an ordinary TCP
// connection ("out of band"); rdma_cm.cc leaves that to rdma_cm.
//
//   g++ -std=c++20 oob_tcp.cc -libverbs -o oob_tcp
//   ./oob_tcp                  the server: waits for one client
//   ./oob_tcp 192.0.2.1        the client: its server's address
//
// Needs a RoCE v2 device, where an address (GID) is an IP address of the network interface.
#include <infiniband/verbs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

namespace {

constexpr char kPort[] = "18515";
constexpr size_t kRoom = 64;               // bytes for one text
char memory[3 * kRoom] = {};               // what the NIC may reach: three texts
char* const kOutgoing = memory;            // we send, or write, or read, from or to here
char* const kReceived = memory + kRoom;    // the other side's SEND arrives here
char* const kShared = memory + 2 * kRoom;  // the client WRITEs and READs this of the server's

[[noreturn]] void fail(const char* what, const char* advice) {
  std::fprintf(stderr, "FAILED: %s%s%s\n  %s\n", what, errno ? ": " : "",
               errno ? std::strerror(errno) : "", advice);
  std::exit(1);
}

// --- the TCP connection: server and client get the same thing, a connected socket ---

int tcp_connection(const char* server_address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  hints.ai_family = server_address ? AF_UNSPEC : AF_INET6;  // an IPv6 listener takes IPv4 as well
  if (getaddrinfo(server_address, kPort, &hints, &found) != 0)
    fail("no such address", "Give the server's IP address, or a name that `getent hosts` knows.");
  int tcp = socket(found->ai_family, found->ai_socktype, 0);
  if (server_address) {
    if (connect(tcp, found->ai_addr, found->ai_addrlen) != 0)
      fail("TCP connect", "Is the server started? Does a firewall block TCP port 18515?");
  } else {
    int yes = 1;
    setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(tcp, found->ai_addr, found->ai_addrlen) != 0 || listen(tcp, 1) != 0)
      fail("TCP listen", "Does another program use TCP port 18515? `ss -ltnp` tells.");
    std::printf("waiting for a client on TCP port %s\n", kPort);
    int listener = tcp;
    if ((tcp = accept(listener, nullptr, nullptr)) < 0) fail("TCP accept", "Start both again.");
    close(listener);
  }
  freeaddrinfo(found);
  return tcp;
}

// What each side must know of the other. One line of text, so that byte order is no question.
struct Side {
  uint32_t qpn = 0;      // queue pair number: who
  uint32_t psn = 0;      // number of the first packet that it will send
  unsigned mtu = 0;      // largest packet that its port takes: 1 is 256 bytes, 5 is 4096
  ibv_gid gid{};         // where
  uint64_t address = 0;  // of kShared, for WRITE and READ,
  uint32_t rkey = 0;     // and the key that permits them
};

Side exchange(int tcp, const Side& mine) {
  char line[128] = {}, gid[33] = {};
  for (size_t i = 0; i < 16; ++i) std::sprintf(gid + 2 * i, "%02x", mine.gid.raw[i]);
  std::snprintf(line, sizeof line, "%06x %06x %x %s %016" PRIx64 " %08x", mine.qpn, mine.psn,
                mine.mtu, gid, mine.address, mine.rkey);
  std::printf("  mine:   %s\n", line);
  if (write(tcp, line, sizeof line) != sizeof line ||
      recv(tcp, line, sizeof line, MSG_WAITALL) != sizeof line)
    fail("exchange over TCP", "The other side ended: see what it says.");
  Side other;
  if (std::sscanf(line, "%x %x %x %32s %" SCNx64 " %x", &other.qpn, &other.psn, &other.mtu, gid,
                  &other.address, &other.rkey) != 6)
    fail("exchange over TCP", "Both sides must be this program.");
  for (size_t i = 0; i < 16; ++i) std::sscanf(gid + 2 * i, "%2hhx", &other.gid.raw[i]);
  std::printf("  theirs: %s\n", line);
  return other;
}

// Both sides have come this far.
void meet(int tcp) {
  char byte = 0;
  if (write(tcp, &byte, 1) != 1 || read(tcp, &byte, 1) != 1)
    fail("the other side is gone", "See what it says.");
}

// --- the device: the one that has the address which the TCP connection uses here ---

struct Port {
  ibv_context* device;
  ibv_gid_entry gid;
};

Port find_port(int tcp) {
  sockaddr_in6 local{};  // of the IPv4 address a.b.c.d the GID is ::ffff:a.b.c.d
  socklen_t size = sizeof local;
  getsockname(tcp, reinterpret_cast<sockaddr*>(&local), &size);
  ibv_gid wanted{};
  if (local.sin6_family == AF_INET6) {
    std::memcpy(wanted.raw, &local.sin6_addr, 16);
  } else {
    wanted.raw[10] = wanted.raw[11] = 0xff;
    std::memcpy(wanted.raw + 12, &reinterpret_cast<sockaddr_in*>(&local)->sin_addr, 4);
  }
  ibv_device** devices = ibv_get_device_list(nullptr);
  for (ibv_device** device = devices; device && *device; ++device) {
    ibv_context* context = ibv_open_device(*device);
    ibv_gid_entry gids[256];
    ssize_t count = context ? ibv_query_gid_table(context, gids, 256, 0) : 0;
    for (ssize_t i = 0; i < count; ++i) {
      if (gids[i].gid_type != IBV_GID_TYPE_ROCE_V2 ||
          std::memcmp(&gids[i].gid, &wanted, sizeof wanted) != 0)
        continue;
      std::printf("  device %s, GID index %u\n", ibv_get_device_name(*device), gids[i].gid_index);
      ibv_free_device_list(devices);
      return {context, gids[i]};
    }
    if (context) ibv_close_device(context);
  }
  errno = ENODEV;
  fail("no RDMA device has the address of the TCP connection",
       "`ibv_devinfo -v` lists devices and GIDs. Without hardware: verbena run -- ./oob_tcp ...");
}

// --- the queue pair's way: RESET, INIT, RTR (ready to receive), RTS (ready to send) ---

void move(ibv_qp* qp, ibv_qp_attr attributes, int mask, const char* name) {
  if ((errno = ibv_modify_qp(qp, &attributes, mask | IBV_QP_STATE)) != 0)
    fail(name, "Do both sides' GIDs belong to one network? `verbena run --log info` explains.");
  std::printf("  the queue pair is in %s\n", name);
}

void connect_queue_pair(ibv_qp* qp, const ibv_gid_entry& gid, const Side& mine, const Side& other) {
  ibv_qp_attr init{};  // which port, and what the other side may do
  init.qp_state = IBV_QPS_INIT;
  init.port_num = static_cast<uint8_t>(gid.port_num);
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  move(qp, init, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");

  ibv_qp_attr rtr{};  // who the other side is: from now on we answer its packets
  rtr.qp_state = IBV_QPS_RTR;
  rtr.path_mtu = static_cast<ibv_mtu>(mine.mtu < other.mtu ? mine.mtu : other.mtu);
  rtr.dest_qp_num = other.qpn;
  rtr.rq_psn = other.psn;
  rtr.max_dest_rd_atomic = 1;  // READs that it may have under way to us
  rtr.min_rnr_timer = 12;      // 0.64 ms: how soon to try again when no receive is posted
  rtr.ah_attr.is_global = 1;
  rtr.ah_attr.grh.dgid = other.gid;
  rtr.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid.gid_index);
  rtr.ah_attr.grh.hop_limit = 64;
  rtr.ah_attr.port_num = static_cast<uint8_t>(gid.port_num);
  move(qp, rtr,
       IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
           IBV_QP_MIN_RNR_TIMER,
       "RTR");

  ibv_qp_attr rts{};  // how we send: what we may have under way, and how long we insist
  rts.qp_state = IBV_QPS_RTS;
  rts.sq_psn = mine.psn;
  rts.max_rd_atomic = 1;
  rts.timeout = 14;   // 4.096 us * 2^14 = 67 ms without an answer: send again,
  rts.retry_cnt = 7;  // seven times
  rts.rnr_retry = 7;  // for ever while no receive is posted
  move(qp, rts,
       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
           IBV_QP_RNR_RETRY,
       "RTS");
}

// --- work: post a request, poll the completion queue until the NIC has done it ---

void await_completion(ibv_cq* cq, const char* of) {
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

void post(ibv_qp* qp, ibv_wr_opcode opcode, uint32_t lkey, const Side& other) {
  ibv_sge local{reinterpret_cast<uintptr_t>(kOutgoing), kRoom, lkey};
  ibv_send_wr request{}, *bad = nullptr;
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;       // tell us when it is done
  request.wr.rdma.remote_addr = other.address;  // a SEND does not look at these two
  request.wr.rdma.rkey = other.rkey;
  if ((errno = ibv_post_send(qp, &request, &bad)) != 0) fail("ibv_post_send", "See the errno.");
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each step as it happens, also into a file
  const char* server_address = argc > 1 ? argv[1] : nullptr;
  int tcp = tcp_connection(server_address);

  std::printf("1. open the device, register memory, make a completion queue and a queue pair\n");
  Port port = find_port(tcp);
  ibv_pd* pd = ibv_alloc_pd(port.device);
  ibv_mr* mr =
      pd ? ibv_reg_mr(pd, memory, sizeof memory,
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
         : nullptr;
  if (!mr) fail("ibv_reg_mr", "Too little memory may be locked? See `ulimit -l`.");
  ibv_cq* cq = ibv_create_cq(port.device, 4, nullptr, nullptr, 0);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.cap = {.max_send_wr = 2,
                .max_recv_wr = 2,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
  wanted.qp_type = IBV_QPT_RC;  // reliable connection
  ibv_qp* qp = cq ? ibv_create_qp(pd, &wanted) : nullptr;
  if (!qp) fail("ibv_create_qp", "`ibv_devinfo -v` tells the device's limits.");

  std::printf("2. tell each other over TCP: QPN, PSN, MTU, GID, address, rkey\n");
  ibv_port_attr attributes{};
  ibv_query_port(port.device, static_cast<uint8_t>(port.gid.port_num), &attributes);
  Side mine{qp->qp_num,   std::random_device{}() & 0xffffff,    attributes.active_mtu,
            port.gid.gid, reinterpret_cast<uintptr_t>(kShared), mr->rkey};
  Side other = exchange(tcp, mine);

  std::printf("3. connect the queue pair: RESET -> INIT -> RTR -> RTS\n");
  connect_queue_pair(qp, port.gid, mine, other);

  if (!server_address) {
    std::printf("4. post a receive, wait for the client's SEND\n");
    ibv_sge room{reinterpret_cast<uintptr_t>(kReceived), kRoom, mr->lkey};
    ibv_recv_wr receive{.wr_id = 0, .next = nullptr, .sg_list = &room, .num_sge = 1}, *bad;
    if ((errno = ibv_post_recv(qp, &receive, &bad)) != 0) fail("ibv_post_recv", "See the errno.");
    meet(tcp);  // a SEND needs a posted receive: now the client may
    await_completion(cq, "RECV");
    std::printf("  received: \"%.64s\"\n5. do nothing: WRITE and READ do not involve this side\n",
                kReceived);
    meet(tcp);
    std::printf("  in memory now: \"%.64s\"\n", kShared);
  } else {
    meet(tcp);
    std::printf("4. SEND: the server has posted where to\n");
    std::snprintf(kOutgoing, kRoom, "hello, sent");
    post(qp, IBV_WR_SEND, mr->lkey, other);
    await_completion(cq, "SEND");
    std::printf("5. WRITE into the server's memory, then READ it back\n");
    std::snprintf(kOutgoing, kRoom, "hello, written");
    post(qp, IBV_WR_RDMA_WRITE, mr->lkey, other);
    await_completion(cq, "WRITE");
    std::memset(kOutgoing, 0, kRoom);
    post(qp, IBV_WR_RDMA_READ, mr->lkey, other);
    await_completion(cq, "READ");
    std::printf("  read back: \"%.64s\"\n", kOutgoing);
    errno = 0;
    if (std::strcmp(kOutgoing, "hello, written") != 0) fail("other bytes came back", "A bug.");
    meet(tcp);
  }

  std::printf("6. everything away, last made first\n");
  ibv_destroy_qp(qp);
  ibv_destroy_cq(cq);
  ibv_dereg_mr(mr);
  ibv_dealloc_pd(pd);
  ibv_close_device(port.device);
  close(tcp);
}
