// An RDMA connection made by hand. Two queue pairs talk only after each knows the other's number,
// first packet sequence number and address. Here the two sides tell each other over an ordinary TCP
// connection ("out of band"); rdma_cm.cc leaves that to rdma_cm.
//
//   g++ -std=c++20 oob_tcp.cc -libverbs -o oob_tcp
//   ./oob_tcp                  the server: waits for one client
//   ./oob_tcp 192.0.2.1        the client: its server's address
//
// Needs a RoCE v2 device, where an address (GID) is an IP address of the network interface.
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "endpoint.h"

static constexpr char kPort[] = "18515";

// What each side must know of the other; sent as it lies in memory.
struct Side {
  uint32_t qpn;   // queue pair number: who
  uint32_t psn;   // number of the first packet that it will send
  uint32_t mtu;   // largest packet that its port takes: 1 is 256 bytes, 5 is 4096
  ibv_gid gid;    // where
  Shared shared;  // what it permits
};

// Server and client get the same thing, a connected socket.
static int tcp_connection(const char* server_address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  hints.ai_family = server_address ? AF_UNSPEC : AF_INET6;  // an IPv6 listener takes IPv4 as well
  check(getaddrinfo(server_address, kPort, &hints, &found) == 0, "no such address",
        "Give the server's IP address, or a name that `getent hosts` knows.");
  int tcp = socket(found->ai_family, found->ai_socktype, 0), yes = 1;
  setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (server_address) {
    check(connect(tcp, found->ai_addr, found->ai_addrlen) == 0, "TCP connect",
          "Is the server started? Does a firewall block TCP port 18515?");
  } else {
    check(bind(tcp, found->ai_addr, found->ai_addrlen) == 0 && listen(tcp, 1) == 0, "TCP listen",
          "Does another program use TCP port 18515? `ss -ltnp` tells.");
    int listener = tcp;
    check((tcp = accept(listener, nullptr, nullptr)) >= 0, "TCP accept", "Start both again.");
    close(listener);
  }
  freeaddrinfo(found);
  return tcp;
}

// Both sides have come this far, and each has what the other sent.
template <typename T>
static T exchange(int tcp, const T& mine) {
  T theirs{};
  check(write(tcp, &mine, sizeof mine) == sizeof mine &&
            recv(tcp, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs,
        "the other side is gone", "See what it says.");
  return theirs;
}

// The device that has the address which the TCP connection uses here. To verbs, the IPv4 address
// a.b.c.d is ::ffff:a.b.c.d.
static ibv_context* find_device(int tcp, ibv_gid_entry& gid) {
  sockaddr_in6 local{};
  socklen_t size = sizeof local;
  getsockname(tcp, reinterpret_cast<sockaddr*>(&local), &size);
  ibv_gid wanted{.raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}};
  if (local.sin6_family == AF_INET6) {
    std::memcpy(wanted.raw, &local.sin6_addr, 16);
  } else {
    std::memcpy(wanted.raw + 12, &reinterpret_cast<sockaddr_in*>(&local)->sin_addr, 4);
  }
  ibv_device** devices = ibv_get_device_list(nullptr);
  for (ibv_device** device = devices; device && *device; ++device) {
    ibv_context* context = ibv_open_device(*device);
    for (uint32_t i = 0; context && ibv_query_gid_ex(context, 1, i, &gid, 0) != EINVAL; ++i) {
      bool same = std::memcmp(&gid.gid, &wanted, sizeof wanted) == 0;
      if (same && gid.gid_type == IBV_GID_TYPE_ROCE_V2) return context;
    }
    if (context) ibv_close_device(context);
  }
  errno = ENODEV;
  check(false, "no RDMA device has the address of the TCP connection",
        "`ibv_devinfo -v` lists devices and GIDs. Without hardware: verbena run -- ./oob_tcp ...");
  return nullptr;
}

static void move(ibv_qp* qp, ibv_qp_state to, ibv_qp_attr how, int mask, const char* name) {
  how.qp_state = to;
  check((errno = ibv_modify_qp(qp, &how, mask | IBV_QP_STATE)) == 0, name,
        "Do both sides' GIDs belong to one network? `verbena run --log info` explains.");
  std::printf("  the queue pair is in %s\n", name);
}

static void connect(ibv_qp* qp, uint32_t gid_index, const Side& mine, const Side& theirs) {
  ibv_qp_attr how{};
  how.port_num = 1;  // what the other side may do:
  how.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  move(qp, IBV_QPS_INIT, how, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");

  how.path_mtu = static_cast<ibv_mtu>(std::min(mine.mtu, theirs.mtu));
  how.dest_qp_num = theirs.qpn;
  how.rq_psn = theirs.psn;
  how.max_dest_rd_atomic = 1;  // READs that it may have under way to us
  how.min_rnr_timer = 12;      // 0.64 ms: how soon to try again when no receive is posted
  how.ah_attr.port_num = 1;
  how.ah_attr.is_global = 1;
  how.ah_attr.grh.dgid = theirs.gid;
  how.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index);
  how.ah_attr.grh.hop_limit = 64;
  int whom = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  move(qp, IBV_QPS_RTR, how, whom | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, "RTR");

  how.sq_psn = mine.psn;
  how.max_rd_atomic = 1;
  how.timeout = 14;   // 4.096 us * 2^14 = 67 ms without an answer: send again,
  how.retry_cnt = 7;  // seven times
  how.rnr_retry = 7;  // for ever while no receive is posted
  int insist = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  move(qp, IBV_QPS_RTS, how, insist | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, "RTS");
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each step as it happens, also into a file
  const bool is_client = argc > 1;
  int tcp = tcp_connection(is_client ? argv[1] : nullptr);

  std::printf("1. open the device, register memory, make a completion queue and a queue pair\n");
  ibv_gid_entry gid{};
  ibv_context* device = find_device(tcp, gid);
  {
    Endpoint endpoint(device, tcp);
    ibv_qp_init_attr wanted = endpoint.queue_pair_wanted();
    ibv_qp* qp = endpoint.qp = ibv_create_qp(endpoint.pd, &wanted);
    check(qp, "ibv_create_qp", "`ibv_devinfo -v` tells the device's limits.");

    std::printf("2. tell each other over TCP: QPN, PSN, MTU, GID, address, rkey\n");
    ibv_port_attr port{};
    ibv_query_port(device, 1, &port);
    uint32_t psn = std::random_device{}() & 0xffffff;  // a stranger cannot guess it
    Side mine{qp->qp_num, psn, port.active_mtu, gid.gid, endpoint.mine()};
    Side theirs = exchange(tcp, mine);
    std::printf("  theirs: QPN 0x%06x, first PSN 0x%06x\n", theirs.qpn, theirs.psn);

    std::printf("3. connect the queue pair: RESET -> INIT -> RTR -> RTS\n");
    connect(qp, gid.gid_index, mine, theirs);
    if (!is_client) endpoint.post_receive();
    exchange(tcp, 'r');  // the server is ready: now the client may send
    is_client ? endpoint.talk_to_server(theirs.shared) : endpoint.listen_to_client();
    if (!is_client) {
      char nothing;
      recv(tcp, &nothing, 1, 0);  // the client hangs up when it is done
      std::printf("  in memory now: \"%.64s\"\n", endpoint.memory.shared);
    }
    std::printf("6. everything away, last made first\n");
    ibv_destroy_qp(qp);
  }
  ibv_close_device(device);
  close(tcp);
}
