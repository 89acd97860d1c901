// An RDMA connection set up by the application. Two queue pairs can communicate only after each
// knows the other's QPN, first packet sequence number (PSN) and address. The two sides exchange
// these over an ordinary TCP connection ("out of band"). In rdma_cm.cc, rdma_cm does this.
//
//   g++ -std=c++20 oob_tcp.cc -libverbs -o oob_tcp
//   ./oob_tcp                  the server: waits for one client
//   ./oob_tcp 192.0.2.1        the client: its server's address
//
// Needs a RoCE v2 device, whose addresses (GIDs) are the IP addresses of the network interface.
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "endpoint.h"

static constexpr char kPort[] = "18515";

// The data that each side needs about the other; sent as raw bytes.
struct QpInfo {
  uint32_t qpn;   // queue pair number
  uint32_t psn;   // PSN of the first packet that it will send
  uint32_t mtu;   // largest packet of its port: 1 is 256 bytes, 5 is 4096
  ibv_gid gid;    // address
  Shared shared;  // memory that the other side may access
};

// Server and client both get a connected socket.
static int tcp_connection(const char* server_address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  hints.ai_family = server_address ? AF_UNSPEC : AF_INET6;  // an IPv6 listener accepts IPv4, too
  check(getaddrinfo(server_address, kPort, &hints, &found) == 0, "no such address",
        "Give the server's IP address, or a name that `getent hosts` knows.");
  int tcp = socket(found->ai_family, found->ai_socktype, 0), yes = 1;
  setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (server_address) {
    check(connect(tcp, found->ai_addr, found->ai_addrlen) == 0, "TCP connect",
          "Is the server started? Does a firewall block TCP port 18515?");
  } else {
    check(bind(tcp, found->ai_addr, found->ai_addrlen) == 0 && listen(tcp, 1) == 0, "TCP listen",
          "Does another program use TCP port 18515? `ss -ltnp` shows it.");
    int listener = tcp;
    check((tcp = accept(listener, nullptr, nullptr)) >= 0, "TCP accept", "Start both again.");
    close(listener);
  }
  freeaddrinfo(found);
  return tcp;
}

// Sends `mine` and returns what the other side sent: both sides have then reached this point.
template <typename T>
static T exchange(int tcp, const T& mine) {
  T theirs{};
  check(write(tcp, &mine, sizeof mine) == sizeof mine &&
            recv(tcp, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs,
        "the other side has ended", "See its output.");
  return theirs;
}

// The device with the local address of the TCP connection. As a GID, the IPv4 address a.b.c.d is
// ::ffff:a.b.c.d.
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

static void modify(ibv_qp* qp, ibv_qp_state to, ibv_qp_attr attr, int mask, const char* name) {
  attr.qp_state = to;
  check((errno = ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE)) == 0, name,
        "Do both sides' GIDs belong to one network? `verbena run --log info` explains.");
  std::printf("  the queue pair is in %s\n", name);
}

static void connect(ibv_qp* qp, uint32_t gid_index, const QpInfo& mine, const QpInfo& theirs) {
  ibv_qp_attr attr{};
  attr.port_num = 1;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;  // of the other side
  modify(qp, IBV_QPS_INIT, attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");

  attr.path_mtu = static_cast<ibv_mtu>(std::min(mine.mtu, theirs.mtu));
  attr.dest_qp_num = theirs.qpn;
  attr.rq_psn = theirs.psn;
  attr.max_dest_rd_atomic = 1;  // outstanding READs from the other side
  attr.min_rnr_timer = 12;      // the other side retries after 0.64 ms if no receive is posted
  attr.ah_attr.port_num = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = theirs.gid;
  attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index);
  attr.ah_attr.grh.hop_limit = 64;
  int address_mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  modify(qp, IBV_QPS_RTR, attr, address_mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
         "RTR");

  attr.sq_psn = mine.psn;
  attr.max_rd_atomic = 1;
  attr.timeout = 14;   // retransmit after 4.096 us * 2^14 = 67 ms without a response,
  attr.retry_cnt = 7;  // at most seven times
  attr.rnr_retry = 7;  // without limit while no receive is posted
  int retry_mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  modify(qp, IBV_QPS_RTS, attr, retry_mask | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC, "RTS");
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also into a file
  const bool is_client = argc > 1;
  int tcp = tcp_connection(is_client ? argv[1] : nullptr);

  std::printf("1. open the device, register memory, create a completion queue and a queue pair\n");
  ibv_gid_entry gid{};
  ibv_context* device = find_device(tcp, gid);
  {
    Endpoint endpoint(device, tcp);
    ibv_qp_init_attr wanted = endpoint.queue_pair_wanted();
    ibv_qp* qp = endpoint.qp = ibv_create_qp(endpoint.pd, &wanted);
    check(qp, "ibv_create_qp", "`ibv_devinfo -v` shows the device's limits.");

    std::printf("2. exchange over TCP: QPN, PSN, MTU, GID, address, rkey\n");
    ibv_port_attr port{};
    ibv_query_port(device, 1, &port);
    uint32_t psn = std::random_device{}() & 0xffffff;  // hard to guess for other hosts
    QpInfo mine{qp->qp_num, psn, port.active_mtu, gid.gid, endpoint.mine()};
    QpInfo theirs = exchange(tcp, mine);
    std::printf("  theirs: QPN 0x%06x, first PSN 0x%06x\n", theirs.qpn, theirs.psn);

    std::printf("3. connect the queue pair: RESET -> INIT -> RTR -> RTS\n");
    connect(qp, gid.gid_index, mine, theirs);
    if (!is_client) endpoint.post_receive();
    exchange(tcp, 'r');  // after this the server is ready, and the client may send
    is_client ? endpoint.run_client_part(theirs.shared) : endpoint.run_server_part();
    if (!is_client) {
      char ignored;
      recv(tcp, &ignored, 1, 0);  // the client closes the connection when it is done
      std::printf("  in memory now: \"%.64s\"\n", endpoint.memory.shared);
    }
    std::printf("6. destroy everything in reverse order\n");
    ibv_destroy_qp(qp);
  }
  ibv_close_device(device);
  close(tcp);
}
