// rc_check: does every operation of a reliable connection between two processes and checks every
// byte of it, on both sides. It is a plain verbs program: it runs on Verbena, on Soft-RoCE or on
// hardware, and either side may be any of them.
//
//   g++ -std=c++20 -O2 -Wall -Wextra rc_check.cc -libverbs -o rc_check
//   rc_check [options]                  the one side: waits for the other
//   rc_check [options] server_address   the other side
//
// The two sides keep in step over TCP. Every check is made once in each direction. A transfer goes
//   1. both paint their memory: the side that gives the data with a message per slot, the side that
//      gets it with background only; both know what either must look like afterwards
//   2. receives are posted, "ready" is exchanged
//   3. the initiator posts everything at once and awaits its completions; the target awaits its own
//   4. both compare all of their memory (messages, gaps and guards), and exchange the verdict
// so both sides print the same lines and exit with the same status. A wrong byte fails its check
// and the run goes on; a failed completion leaves the queue pair unusable and ends the run.

#include <arpa/inet.h>
#include <endian.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::array<size_t, 9> kSizes{0, 1, 63, 1024, 1025, 4096, 4097, 65536, 1 << 20};
constexpr size_t kMaxSize = 1 << 20;
constexpr unsigned kDepth = 8;           // messages outstanding
constexpr unsigned kDepthOfLargest = 2;  // of the largest size, where memory and time count
constexpr unsigned kMaxSges = 4;
constexpr size_t kGuard = 64;            // bytes around each message that nobody may touch
constexpr size_t kGap = 24;              // between the pieces of a message with several SGEs
constexpr uint32_t kInline = 48;         // asked for as max_inline_data
constexpr unsigned kReadsInFlight = 4;   // fewer than kDepth: the NIC has to hold some back
constexpr uint8_t kTimeout = 17;         // 0.54 s: an emulated peer on a busy machine is slow
constexpr auto kPatience = 30s;          // for completions; far above retry_cnt times the timeout
constexpr auto kPatienceAfterPeer = 3s;  // for receives once the initiator has its completions

// ------------------------------------------------------------------------------------- errors

std::string words(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string words(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

// Ends the run: nothing more can be asked of this queue pair or of the other side.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Broken broken_errno(const std::string& what, int error = errno) {
  return Broken(what + ": " + strerror(error));
}

// What the alarm says was going on.
char current_step[80] = "start";

void at_step(const char* step) { snprintf(current_step, sizeof current_step, "%s", step); }

void on_alarm(int) {
  const char* const parts[] = {"rc_check: out of time at: ", current_step, "\n"};
  for (const char* part : parts) {
    if (write(STDERR_FILENO, part, strlen(part)) < 0) break;
  }
  _exit(3);
}

// ------------------------------------------------------------------------------------- options

struct Options {
  std::string device;  // empty: the first
  int gid_index = -1;  // -1: the first that is an IPv4 address, else the first
  uint16_t port = 18515;
  unsigned mtu = 0;  // 0: what the port has
  uint32_t iterations = 1;
  uint64_t seed = 1;
  unsigned limit_s = 120;
  bool events = false;
  bool list = false;
  std::string server;  // empty: be the server
};

[[noreturn]] void usage(int status) {
  fprintf(
      status == 0 ? stdout : stderr,
      "Usage: rc_check [options]                  wait for the other side\n"
      "       rc_check [options] server_address   connect to it\n"
      "Does every RC operation in both directions and checks every byte.\n\n"
      "  -d, --device=NAME     RDMA device (default: the first)\n"
      "  -g, --gid-index=N     GID index (default: the first IPv4 address, else 0)\n"
      "  -p, --port=N          TCP port of the server (default 18515)\n"
      "  -m, --mtu=N           path MTU, 256 to 4096 (default: the port's; the lower of the two)\n"
      "  -n, --iterations=N    how often (default 1; the client's counts)\n"
      "  -s, --seed=N          seed of the data (default 1; the client's counts)\n"
      "  -t, --time-limit=N    give up after N seconds (default 120)\n"
      "  -e, --events          sleep on completion events instead of polling\n"
      "  -l, --list            print device, GID index and GID of all there are, and end\n"
      "  -h, --help            this text\n"
      "Exit status: 0 all good, 1 a check failed, 2 wrong usage, 3 out of time.\n");
  exit(status);
}

uint64_t number(const char* option, const char* text, uint64_t lowest, uint64_t highest) {
  char* end = nullptr;
  errno = 0;
  const uint64_t value = strtoull(text, &end, 0);
  if (errno != 0 || end == text || *end != '\0' || value < lowest || value > highest) {
    fprintf(stderr, "rc_check: %s takes a number from %" PRIu64 " to %" PRIu64 ", not \"%s\"\n",
            option, lowest, highest, text);
    exit(2);
  }
  return value;
}

Options parse_options(int count, char** arguments) {
  static const option kLong[] = {{"device", required_argument, nullptr, 'd'},
                                 {"gid-index", required_argument, nullptr, 'g'},
                                 {"port", required_argument, nullptr, 'p'},
                                 {"mtu", required_argument, nullptr, 'm'},
                                 {"iterations", required_argument, nullptr, 'n'},
                                 {"seed", required_argument, nullptr, 's'},
                                 {"time-limit", required_argument, nullptr, 't'},
                                 {"events", no_argument, nullptr, 'e'},
                                 {"list", no_argument, nullptr, 'l'},
                                 {"help", no_argument, nullptr, 'h'},
                                 {}};
  Options options;
  int letter;
  while ((letter = getopt_long(count, arguments, "d:g:p:m:n:s:t:elh", kLong, nullptr)) != -1) {
    // clang-format off
    switch (letter) {
      case 'd': options.device = optarg; break;
      case 'g': options.gid_index = static_cast<int>(number("-g", optarg, 0, 65535)); break;
      case 'p': options.port = static_cast<uint16_t>(number("-p", optarg, 1, 65535)); break;
      case 'm': options.mtu = static_cast<unsigned>(number("-m", optarg, 256, 4096)); break;
      case 'n': options.iterations = static_cast<uint32_t>(number("-n", optarg, 1, 1000000)); break;
      case 's': options.seed = number("-s", optarg, 0, UINT64_MAX); break;
      case 't': options.limit_s = static_cast<unsigned>(number("-t", optarg, 1, 86400)); break;
      case 'e': options.events = true; break;
      case 'l': options.list = true; break;
      case 'h': usage(0);
      default: usage(2);
    }
    // clang-format on
  }
  if (count - optind > 1) usage(2);
  if (optind < count) options.server = arguments[optind];
  return options;
}

// ------------------------------------------------------------------------ the other side (TCP)

class Peer {
 public:
  static Peer wait_for_client(uint16_t port) {
    int listener = open_listener(AF_INET6, port);
    if (listener < 0) listener = open_listener(AF_INET, port);  // a machine without IPv6
    if (listener < 0) throw broken_errno(words("cannot listen on TCP port %u", port));
    const int fd = accept(listener, nullptr, nullptr);
    const int error = errno;
    close(listener);
    if (fd < 0) throw broken_errno("cannot accept a connection", error);
    return Peer(fd);
  }

  // Tries for ten seconds, so that the two sides may be started in any order.
  static Peer connect_to(const std::string& server, uint16_t port) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(server.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error != 0) throw Broken("cannot look up " + server + ": " + gai_strerror(error));
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
    const auto give_up = Clock::now() + 10s;
    for (;;) {
      int last_error = 0;
      for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
        const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
          last_error = errno;
          continue;
        }
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) return Peer(fd);
        last_error = errno;
        close(fd);
      }
      if (Clock::now() > give_up) {
        throw broken_errno(words("cannot connect to %s, TCP port %u", server.c_str(), port),
                           last_error);
      }
      std::this_thread::sleep_for(100ms);
    }
  }

  Peer(Peer&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Peer& operator=(Peer&&) = delete;
  ~Peer() {
    if (fd_ >= 0) close(fd_);
  }

  // Each side says one thing and hears one; returns when both have.
  template <typename Message>
  Message exchange(const Message& mine) {
    const char* out = reinterpret_cast<const char*>(&mine);
    for (size_t done = 0; done < sizeof mine;) {
      const ssize_t n = send(fd_, out + done, sizeof mine - done, MSG_NOSIGNAL);
      if (n <= 0) throw broken_errno("cannot talk to the other side");
      done += static_cast<size_t>(n);
    }
    Message theirs{};
    char* in = reinterpret_cast<char*>(&theirs);
    for (size_t done = 0; done < sizeof theirs;) {
      const ssize_t n = recv(fd_, in + done, sizeof theirs - done, 0);
      if (n == 0) throw Broken("the other side has closed the connection");
      if (n < 0) throw broken_errno("cannot hear the other side");
      done += static_cast<size_t>(n);
    }
    return theirs;
  }

  // Has it said its next thing already?
  bool has_spoken() const {
    pollfd p{fd_, POLLIN, 0};
    return poll(&p, 1, 0) > 0;
  }

 private:
  explicit Peer(int fd) : fd_(fd) {
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  static int open_listener(int family, uint16_t port) {
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    const int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_storage address{};
    socklen_t length = sizeof(sockaddr_in);
    if (family == AF_INET6) {
      setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      auto& in6 = reinterpret_cast<sockaddr_in6&>(address);
      in6.sin6_family = AF_INET6;
      in6.sin6_port = htons(port);
      length = sizeof in6;
    } else {
      auto& in = reinterpret_cast<sockaddr_in&>(address);
      in.sin_family = AF_INET;
      in.sin_port = htons(port);
    }
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(fd, 1) == 0)
      return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }

  int fd_;
};

// ---------------------------------------------------------------------------- the queue pair

template <auto Destroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    Destroy(object);
  }
};
using Context = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using Region = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using Channel = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using Completions = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using Pair = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;
using Window = std::unique_ptr<ibv_mw, Destroyer<ibv_dealloc_mw>>;

// What each side tells the other first. All of it in network byte order.
struct Hello {
  uint32_t magic, qpn, psn, mtu, rkey, read_depth, features, iterations;
  uint64_t address, seed;
  uint8_t gid[16];
};
constexpr uint32_t kMagic = 0x72630002;  // changes whenever what the two sides do changes
constexpr uint32_t kAtomics = 1, kWindows = 2;

ibv_mtu mtu_code(unsigned bytes) {
  ibv_mtu code = IBV_MTU_256;
  while (code < IBV_MTU_4096 && (256U << code) <= bytes) code = static_cast<ibv_mtu>(code + 1);
  return code;
}
unsigned mtu_bytes(ibv_mtu code) { return 128U << code; }

bool is_zero(const ibv_gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](uint8_t b) { return b == 0; });
}
bool is_ipv4(const ibv_gid& gid) {
  static const uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return memcmp(gid.raw, kMapped, sizeof kMapped) == 0;
}
std::string name_of(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN];
  if (is_ipv4(gid)) return inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  return inet_ntop(AF_INET6, gid.raw, text, sizeof text);
}

class Devices {
 public:
  Devices() : list_(ibv_get_device_list(&count_)) {
    if (list_ == nullptr) throw broken_errno("cannot list RDMA devices");
  }
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
  ~Devices() { ibv_free_device_list(list_); }
  ibv_device** begin() const { return list_; }
  ibv_device** end() const { return list_ + count_; }

  Context open(const std::string& name) const {
    for (ibv_device* device : *this) {
      if (!name.empty() && name != ibv_get_device_name(device)) continue;
      Context context(ibv_open_device(device));
      if (!context) throw broken_errno(words("cannot open %s", ibv_get_device_name(device)));
      return context;
    }
    throw Broken(name.empty() ? "there is no RDMA device" : "there is no RDMA device " + name);
  }

 private:
  int count_ = 0;
  ibv_device** list_;
};

constexpr uint8_t kPort = 1;

void each_gid(ibv_context* context, const std::function<void(int, const ibv_gid&)>& visit) {
  ibv_port_attr port{};
  if (ibv_query_port(context, kPort, &port) != 0) return;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid gid{};
    if (ibv_query_gid(context, kPort, i, &gid) == 0 && !is_zero(gid)) visit(i, gid);
  }
}

void list_gids() {
  const Devices devices;
  for (ibv_device* device : devices) {
    const char* name = ibv_get_device_name(device);
    const Context context = devices.open(name);
    each_gid(context.get(), [&](int index, const ibv_gid& gid) {
      printf("%s %d %s\n", name, index, name_of(gid).c_str());
    });
  }
}

// Device, memory and one connected queue pair.
class Link {
 public:
  Link(const Options& options, size_t memory_size) : events_(options.events) {
    context_ = Devices().open(options.device);
    if (ibv_query_device(context_.get(), &device_) != 0)
      throw broken_errno("cannot query the device");
    if (ibv_query_port(context_.get(), kPort, &port_) != 0)
      throw broken_errno("cannot query the port");
    if (port_.state != IBV_PORT_ACTIVE) throw Broken("the device's port is not active");
    choose_gid(options.gid_index);
    mtu_ = options.mtu == 0 ? port_.active_mtu : mtu_code(options.mtu);
    if (mtu_ > port_.active_mtu) {
      throw Broken(words("the port's MTU is %u: cannot use %u", mtu_bytes(port_.active_mtu),
                         mtu_bytes(mtu_)));
    }
    domain_.reset(ibv_alloc_pd(context_.get()));
    if (!domain_) throw broken_errno("cannot allocate a protection domain");
    memory_.resize(memory_size);
    register_memory();
    create_queues();
  }

  std::vector<uint8_t>& memory() { return memory_; }
  uint32_t lkey() const { return region_->lkey; }
  ibv_qp* qp() const { return pair_.get(); }
  ibv_mr* region() const { return region_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  bool is_rxe() const { return strncmp(ibv_get_device_name(context_->device), "rxe", 3) == 0; }
  uint32_t max_inline() const { return max_inline_; }
  unsigned max_sges() const {
    return std::min<unsigned>(kMaxSges, static_cast<unsigned>(device_.max_sge));
  }

  std::string description() const {
    return words("%s, GID %d (%s)", ibv_get_device_name(context_->device), gid_index_,
                 name_of(gid_).c_str());
  }

  Hello hello(const Options& options) const {
    Hello h{};
    h.magic = htonl(kMagic);
    h.qpn = htonl(pair_->qp_num);
    h.psn = htonl(psn());
    h.mtu = htonl(mtu_);
    h.rkey = htonl(region_->rkey);
    h.read_depth = htonl(static_cast<uint32_t>(std::clamp(device_.max_qp_rd_atom, 1, 255)));
    h.features = htonl((device_.atomic_cap != IBV_ATOMIC_NONE ? kAtomics : 0) |
                       (has_windows() ? kWindows : 0));
    h.iterations = htonl(options.iterations);
    h.address = htobe64(reinterpret_cast<uintptr_t>(memory_.data()));
    h.seed = htobe64(options.seed);
    memcpy(h.gid, gid_.raw, sizeof h.gid);
    return h;
  }

  void connect(const Hello& peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = std::min(mtu_, static_cast<ibv_mtu>(ntohl(peer.mtu)));
    attr.dest_qp_num = ntohl(peer.qpn);
    attr.rq_psn = ntohl(peer.psn);
    attr.max_dest_rd_atomic = static_cast<uint8_t>(
        std::min<unsigned>(kReadsInFlight, static_cast<unsigned>(device_.max_qp_rd_atom)));
    attr.min_rnr_timer = 6;  // 0.16 ms
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = kPort;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index_);
    memcpy(attr.ah_attr.grh.dgid.raw, peer.gid, sizeof peer.gid);
    modify(attr,
           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
           "ready to receive");
    mtu_ = attr.path_mtu;

    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = kTimeout;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;  // for ever
    attr.sq_psn = psn();
    attr.max_rd_atomic = static_cast<uint8_t>(
        std::min({kReadsInFlight, static_cast<unsigned>(device_.max_qp_init_rd_atom),
                  ntohl(peer.read_depth)}));
    modify(attr,
           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC,
           "ready to send");
  }

  unsigned mtu() const { return mtu_bytes(mtu_); }

  // Awaits `count` completions of sends. Stops at one that failed, and at the end of patience.
  std::vector<ibv_wc> await_sends(size_t count) { return await(send_cq_.get(), count, nullptr); }

  // Awaits `count` completions of receives; ends also soon after the initiator has said that all of
  // its own are there.
  std::vector<ibv_wc> await_receives(size_t count, const Peer& initiator) {
    return await(receive_cq_.get(), count, &initiator);
  }

 private:
  std::vector<ibv_wc> await(ibv_cq* cq, size_t count, const Peer* initiator) {
    std::vector<ibv_wc> done;
    auto give_up = Clock::now() + kPatience;
    while (done.size() < count && Clock::now() < give_up) {
      if (poll_into(cq, count - done.size(), done)) {
        if (done.back().status != IBV_WC_SUCCESS) break;
        continue;
      }
      if (initiator != nullptr && initiator->has_spoken()) {
        initiator = nullptr;
        give_up = std::min(give_up, Clock::now() + kPatienceAfterPeer);
      }
      if (events_) sleep_until_event(cq);
    }
    return done;
  }

  // Low bits of the QP number vary between runs; the start near the wrap makes every run cross it.
  uint32_t psn() const { return 0xffffc0 - (pair_->qp_num & 0x3f); }

  bool has_windows() const {
    constexpr unsigned wanted = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_MGT_EXTENSIONS;
    constexpr unsigned type_2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    return (device_.device_cap_flags & wanted) == wanted &&
           (device_.device_cap_flags & type_2) != 0;
  }

  void choose_gid(int wanted) {
    each_gid(context_.get(), [&](int index, const ibv_gid& gid) {
      const bool better =
          wanted >= 0 ? index == wanted : gid_index_ < 0 || (is_ipv4(gid) && !is_ipv4(gid_));
      if (better) {
        gid_index_ = index;
        gid_ = gid;
      }
    });
    if (gid_index_ < 0)
      throw Broken(wanted < 0 ? "the device has no GID"
                              : words("the device has no GID %d", wanted));
  }

  void register_memory() {
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (device_.atomic_cap != IBV_ATOMIC_NONE) access |= IBV_ACCESS_REMOTE_ATOMIC;
    if (has_windows()) access |= IBV_ACCESS_MW_BIND;
    region_.reset(ibv_reg_mr(domain_.get(), memory_.data(), memory_.size(), access));
    if (!region_) throw broken_errno(words("cannot register %zu bytes", memory_.size()));
  }

  void create_queues() {
    if (events_) {
      channel_.reset(ibv_create_comp_channel(context_.get()));
      if (!channel_) throw broken_errno("cannot create a completion channel");
    }
    for (Completions* cq : {&send_cq_, &receive_cq_}) {
      cq->reset(ibv_create_cq(context_.get(), 4 * kDepth, nullptr, channel_.get(), 0));
      if (!*cq) throw broken_errno("cannot create a completion queue");
      if (events_ && ibv_req_notify_cq(cq->get(), 0) != 0)
        throw broken_errno("cannot ask for completion events");
    }
    ibv_qp_init_attr init{};
    init.send_cq = send_cq_.get();
    init.recv_cq = receive_cq_.get();
    init.qp_type = IBV_QPT_RC;
    init.cap = {2 * kDepth, 2 * kDepth, max_sges(), max_sges(), kInline};
    pair_.reset(ibv_create_qp(domain_.get(), &init));
    if (!pair_) throw broken_errno("cannot create a queue pair");
    max_inline_ = init.cap.max_inline_data;

    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = kPort;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (device_.atomic_cap != IBV_ATOMIC_NONE) attr.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
    modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
           "initialised");
  }

  void modify(ibv_qp_attr attr, int mask, const char* state) {
    const int error = ibv_modify_qp(pair_.get(), &attr, mask);
    if (error != 0) throw broken_errno(words("cannot make the queue pair %s", state), error);
  }

  static bool poll_into(ibv_cq* cq, size_t room, std::vector<ibv_wc>& done) {
    std::array<ibv_wc, 4> batch{};
    const int n = ibv_poll_cq(cq, static_cast<int>(std::min(room, batch.size())), batch.data());
    if (n < 0) throw Broken("cannot poll a completion queue");
    for (int i = 0; i < n; ++i) {
      done.push_back(batch[static_cast<size_t>(i)]);
      if (batch[static_cast<size_t>(i)].status != IBV_WC_SUCCESS) break;
    }
    return n > 0;
  }

  // Arms, and looks once more before it sleeps: by the caller's next poll, since an armed queue
  // that is not empty is polled at once. Sleeps in short stretches, so patience is kept.
  void sleep_until_event(ibv_cq* cq) {
    if (!std::exchange(armed_[cq == send_cq_.get()], true)) {
      if (ibv_req_notify_cq(cq, 0) != 0) throw broken_errno("cannot ask for completion events");
      return;
    }
    pollfd p{channel_->fd, POLLIN, 0};
    if (poll(&p, 1, 500) <= 0) return;
    ibv_cq* which = nullptr;
    void* unused = nullptr;
    if (ibv_get_cq_event(channel_.get(), &which, &unused) != 0)
      throw broken_errno("cannot get a completion event");
    ibv_ack_cq_events(which, 1);
    armed_[which == send_cq_.get()] = false;
  }

  const bool events_;
  Context context_;
  ibv_device_attr device_{};
  ibv_port_attr port_{};
  int gid_index_ = -1;
  ibv_gid gid_{};
  ibv_mtu mtu_ = IBV_MTU_1024;
  std::vector<uint8_t> memory_;
  Domain domain_;
  Region region_;
  Channel channel_;
  Completions send_cq_, receive_cq_;
  Pair pair_;
  uint32_t max_inline_ = 0;
  bool armed_[2] = {true, true};  // of receives, of sends
};

// ------------------------------------------------------------------------------------ patterns

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void fill(uint8_t* to, size_t size, uint64_t key) {
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t word = htole64(mixed(key + at));
    memcpy(to + at, &word, std::min<size_t>(8, size - at));
  }
}

// `count` messages of `size` bytes, one a slot, each in `pieces` pieces with gaps between.
struct Layout {
  size_t size;
  unsigned count;
  unsigned pieces;

  struct Piece {
    size_t at, size;
  };

  // The same for any number of pieces, so that both sides know where the other's slots are.
  size_t stride() const { return (size + 2 * kGuard + size_t{kMaxSges} * kGap + 63) / 64 * 64; }
  size_t total() const { return stride() * count; }
  // Slots start at every alignment.
  size_t start(unsigned slot) const { return stride() * slot + kGuard + slot % 8; }

  std::vector<Piece> of(unsigned slot) const {
    std::vector<Piece> all;
    size_t at = start(slot), left = size;
    for (unsigned i = 0; i < pieces && left > 0; ++i) {
      // uneven and odd: 1/7 of what is left, and the rest in the last
      const size_t here = i + 1 == pieces ? left : std::min(left, left / 7 + 1);
      all.push_back({at, here});
      at += here + kGap;
      left -= here;
    }
    return all;
  }
};

constexpr size_t kMemorySize = 4 * kMaxSize;
static_assert(kMemorySize >= kDepthOfLargest * (kMaxSize + 4096));
static_assert(kMemorySize >= kDepth * size_t{65536 + 4096});

void paint(uint8_t* memory, const Layout& layout, uint64_t key, bool with_messages) {
  fill(memory, layout.total(), mixed(key ^ 0xbac6));
  if (!with_messages) return;
  std::vector<uint8_t> message(layout.size);
  for (unsigned slot = 0; slot < layout.count; ++slot) {
    fill(message.data(), message.size(), mixed(key + slot + 1));
    size_t from = 0;
    for (const auto& piece : layout.of(slot)) {
      memcpy(memory + piece.at, message.data() + from, piece.size);
      from += piece.size;
    }
  }
}

// What is wrong with memory that should be as painted; empty if nothing is.
std::string compare(const uint8_t* memory, const Layout& layout, uint64_t key) {
  std::vector<uint8_t> wanted(layout.total());
  paint(wanted.data(), layout, key, true);
  const auto [bad, good] = std::mismatch(memory, memory + wanted.size(), wanted.begin());
  if (good == wanted.end()) return {};
  const size_t at = static_cast<size_t>(bad - memory);
  size_t wrong = 0;
  for (size_t i = at; i < wanted.size(); ++i) wrong += memory[i] != wanted[i];
  const unsigned slot = static_cast<unsigned>(at / layout.stride());
  size_t before = 0;
  std::string where = words("a byte outside message %u, %zd from its start,", slot,
                            static_cast<ssize_t>(at) - static_cast<ssize_t>(layout.start(slot)));
  for (const auto& piece : layout.of(slot)) {
    if (at >= piece.at && at < piece.at + piece.size) {
      where = words("byte %zu of message %u", before + at - piece.at, slot);
    }
    before += piece.size;
  }
  return where + words(" is 0x%02x instead of 0x%02x (%zu wrong in all)", *bad, *good, wrong);
}

// -------------------------------------------------------------------------------------- checks

// Send requests that are posted with one call. They are numbered from 0 and signaled.
class Requests {
 public:
  ibv_send_wr& add(ibv_wr_opcode opcode, std::vector<ibv_sge> sges) {
    const std::vector<ibv_sge>& list = sges_.emplace_back(std::move(sges));
    ibv_send_wr& wr = requests_.emplace_back();
    if (requests_.size() > 1) requests_[requests_.size() - 2].next = &wr;
    wr.wr_id = requests_.size() - 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = const_cast<ibv_sge*>(list.data());
    wr.num_sge = static_cast<int>(list.size());
    return wr;
  }

  void post(ibv_qp* qp) {
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(qp, &requests_.front(), &bad);
    if (error != 0) throw broken_errno("cannot post a send", error);
  }

 private:
  std::deque<ibv_send_wr> requests_;  // a deque leaves its elements where they are
  std::deque<std::vector<ibv_sge>> sges_;
};

struct Operation {
  const char* name;
  ibv_wr_opcode opcode;
  bool takes_receive;
  bool immediate;
  ibv_wc_opcode at_initiator, at_target;
};
constexpr Operation kSend{"SEND", IBV_WR_SEND, true, false, IBV_WC_SEND, IBV_WC_RECV};
constexpr Operation kSendImm{"SEND with immediate", IBV_WR_SEND_WITH_IMM, true, true,
                             IBV_WC_SEND,           IBV_WC_RECV};
constexpr Operation kWrite{"WRITE", IBV_WR_RDMA_WRITE, false,
                           false,   IBV_WC_RDMA_WRITE, IBV_WC_RECV};
constexpr Operation kWriteImm{
    .name = "WRITE with immediate",
    .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
    .takes_receive = true,
    .immediate = true,
    .at_initiator = IBV_WC_RDMA_WRITE,
    .at_target = IBV_WC_RECV_RDMA_WITH_IMM,
};
constexpr Operation kRead{"READ", IBV_WR_RDMA_READ, false, false, IBV_WC_RDMA_READ, IBV_WC_RECV};

struct Variation {
  bool inlined = false;
  bool late_receives = false;  // the receives come only after the SENDs: receiver not ready
};

// Strings that fit one message of the TCP connection.
struct Verdict {
  char text[384];
};

class Checks {
 public:
  // The client's choices of what to do count.
  Checks(Link& link, Peer& peer, const Hello& mine, const Hello& other, bool client)
      : link_(link),
        peer_(peer),
        remote_address_(be64toh(other.address)),
        remote_rkey_(ntohl(other.rkey)),
        features_(ntohl(mine.features & other.features)),
        client_(client),
        iterations_(ntohl((client ? mine : other).iterations)),
        seed_(be64toh((client ? mine : other).seed)) {}

  // Returns whether all of it was good.
  bool run() {
    try {
      run_all();
    } catch (const Broken&) {  // its check has said so
    }
    printf("rc_check: %u ok, %u failed, %u skipped\n", ok_, failed_, skipped_);
    return failed_ == 0;
  }

 private:
  void run_all() {
    for (const bool client_initiates : {true, false}) {
      initiating_ = client_ == client_initiates;
      for (const Operation& op : {kSend, kSendImm, kWrite, kWriteImm, kRead}) {
        check(op.name, [&] { all_sizes(op); });
        check(words("%s, several SGEs", op.name), [&] { several_sges(op); });
      }
      check("SEND inline", [&] { inlined(kSend); });
      check("WRITE inline", [&] { inlined(kWrite); });
      check("SEND, receiver not ready", [&] {
        transfer(kSend, {4097, kDepth, 1}, 1, {.late_receives = true});
      });
      check("fetch and add", [&] { fetch_and_add(); });
      check("compare and swap", [&] { compare_and_swap(); });
      check("SEND with invalidate", [&] { send_with_invalidate(); });
    }
    initiating_ = client_;
    check("WRITE, wrong key", [&] { write_with_wrong_key(); });  // last: it ends the connection
  }

  uint8_t* memory() { return link_.memory().data(); }
  uint64_t address() { return reinterpret_cast<uintptr_t>(memory()); }

  // Runs one check as often as asked for and prints its line.
  void check(const std::string& name, const std::function<void()>& body) {
    at_step(name.c_str());
    messages_ = bytes_ = 0;
    problem_.clear();
    skip_.clear();
    const auto began = Clock::now();
    try {
      for (uint32_t i = 0; i < iterations_ && problem_.empty() && skip_.empty(); ++i) body();
    } catch (const Broken& e) {
      if (problem_.empty()) problem_ = e.what();
      report(name, Clock::now() - began);
      throw;
    }
    report(name, Clock::now() - began);
  }

  void report(const std::string& name, Clock::duration took) {
    const char* way = initiating_ == client_ ? "client to server" : "server to client";
    const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(took).count();
    if (!problem_.empty()) {
      ++failed_;
      printf("FAILED  %s  %s: %s\n", way, name.c_str(), problem_.c_str());
    } else if (!skip_.empty()) {
      ++skipped_;
      printf("skipped %s  %s: %s\n", way, name.c_str(), skip_.c_str());
    } else {
      ++ok_;
      printf("ok      %s  %s (%" PRIu64 " messages, %" PRIu64 " bytes, %" PRId64 " ms)\n", way,
             name.c_str(), messages_, bytes_, ms);
    }
    fflush(stdout);
  }

  // Exchanges what each side found wrong; returns the first, ours or theirs.
  std::string agree(const std::string& mine) {
    Verdict verdict{};
    snprintf(verdict.text, sizeof verdict.text, "%s", mine.c_str());
    Verdict theirs = peer_.exchange(verdict);
    theirs.text[sizeof theirs.text - 1] = '\0';
    if (!mine.empty()) return mine;
    return theirs.text[0] == '\0' ? std::string()
                                  : std::string("the other side says: ") + theirs.text;
  }
  void agree_or_end(const std::string& mine) {
    const std::string problem = agree(mine);
    if (!problem.empty()) throw Broken(problem);
  }
  void agree_data(const std::string& what, const std::string& mine) {
    const std::string problem = agree(mine.empty() ? mine : what + ": " + mine);
    if (problem_.empty()) problem_ = problem;
  }

  void all_sizes(const Operation& op) {
    for (const size_t size : kSizes)
      transfer(op, {size, size == kMaxSize ? kDepthOfLargest : kDepth, 1}, 1, {});
  }
  void several_sges(const Operation& op) {
    for (const size_t size : {size_t{63}, size_t{4097}, size_t{65536}}) {
      transfer(op, {size, kDepth, std::min(3U, link_.max_sges())}, std::min(4U, link_.max_sges()),
               {});
    }
  }
  void inlined(const Operation& op) {
    const uint32_t limit = std::min({link_.max_inline(), kInline});
    // both sides must do the same: the initiator's limit counts
    struct Limit {
      uint32_t value;
    } theirs = peer_.exchange(Limit{htonl(limit)});
    const uint32_t size = initiating_ ? limit : ntohl(theirs.value);
    if (size == 0) {
      skip_ = "the device takes no inline data";
      return;
    }
    transfer(op, {1, kDepth, 1}, 1, {.inlined = true});
    transfer(op, {size, kDepth, 1}, 1, {.inlined = true});
  }

  std::vector<ibv_sge> sges_of(const Layout& layout, unsigned slot) {
    std::vector<ibv_sge> list;
    for (const auto& piece : layout.of(slot)) {
      list.push_back({address() + piece.at, static_cast<uint32_t>(piece.size), link_.lkey()});
    }
    return list;
  }

  void post_receives(const Layout& layout) {
    for (unsigned slot = 0; slot < layout.count; ++slot) {
      std::vector<ibv_sge> sges = sges_of(layout, slot);
      ibv_recv_wr wr{};
      wr.wr_id = slot;
      wr.sg_list = sges.data();
      wr.num_sge = static_cast<int>(sges.size());
      ibv_recv_wr* bad = nullptr;
      const int error = ibv_post_recv(link_.qp(), &wr, &bad);
      if (error != 0) throw broken_errno("cannot post a receive", error);
    }
  }

  // One transfer of layout.count messages. `layout` is the initiator's; the target of a SEND
  // receives into `receive_pieces` pieces, the target of the others has each message in one piece.
  void transfer(const Operation& op, Layout layout, unsigned receive_pieces, const Variation& how) {
    if (!initiating_)
      layout.pieces =
          op.opcode == IBV_WR_SEND || op.opcode == IBV_WR_SEND_WITH_IMM ? receive_pieces : 1;
    const uint64_t key = mixed(seed_ + ++serial_);
    const bool gives = initiating_ != (op.opcode == IBV_WR_RDMA_READ);
    const std::string what = words("%zu bytes", layout.size);
    paint(memory(), layout, key, gives);

    if (!initiating_ && op.takes_receive && !how.late_receives) post_receives(layout);
    agree_or_end({});
    std::string problem;
    if (initiating_) {
      problem = initiate(op, layout, how);
    } else if (op.takes_receive) {
      if (how.late_receives) {
        std::this_thread::sleep_for(20ms);
        post_receives(layout);
      }
      problem = receive(op, layout);
    }
    agree_or_end(problem.empty() ? problem : what + ": " + problem);
    agree_data(what, compare(memory(), layout, key));
    messages_ += layout.count;
    bytes_ += layout.size * layout.count;
  }

  uint32_t immediate(unsigned slot) const {
    return htonl(static_cast<uint32_t>(serial_ << 8 | slot));
  }

  std::string initiate(const Operation& op, const Layout& layout, const Variation& how) {
    // With several pieces only the last is signaled: completions of the others are implied.
    const bool all_signaled = layout.pieces == 1;
    std::vector<uint8_t> scratch;
    if (how.inlined) scratch = link_.memory();  // inline data need not be registered
    Requests requests;
    for (unsigned slot = 0; slot < layout.count; ++slot) {
      std::vector<ibv_sge> sges = sges_of(layout, slot);
      if (how.inlined) {
        sges[0].addr = reinterpret_cast<uintptr_t>(scratch.data() + layout.of(slot)[0].at);
        sges[0].lkey = 0;
      }
      ibv_send_wr& wr = requests.add(op.opcode, std::move(sges));
      if (!all_signaled && slot + 1 < layout.count) wr.send_flags = 0;
      if (how.inlined) wr.send_flags |= IBV_SEND_INLINE;
      if (op.immediate) wr.imm_data = immediate(slot);
      wr.wr.rdma.remote_addr = remote_address_ + layout.start(slot);
      wr.wr.rdma.rkey = remote_rkey_;
    }
    requests.post(link_.qp());
    if (how.inlined) std::fill(scratch.begin(), scratch.end(), uint8_t{0});  // ours again at once
    const unsigned first = all_signaled ? 0 : layout.count - 1;
    return await_sends(first, layout.count - first, op.at_initiator);
  }

  std::string receive(const Operation& op, const Layout& layout) {
    const auto done = link_.await_receives(layout.count, peer_);
    for (size_t i = 0; i < done.size(); ++i) {
      const ibv_wc& wc = done[i];
      std::string problem = judge(wc, i, op.at_target);
      if (!problem.empty()) return problem;
      if (wc.byte_len != layout.size) return words("receive %zu: byte_len is %u", i, wc.byte_len);
      if (((wc.wc_flags & IBV_WC_WITH_IMM) != 0) != op.immediate) {
        return words("receive %zu: wc_flags is 0x%x", i, static_cast<unsigned>(wc.wc_flags));
      }
      if (op.immediate && wc.imm_data != immediate(static_cast<unsigned>(i))) {
        return words("receive %zu: immediate is 0x%08x instead of 0x%08x", i, ntohl(wc.imm_data),
                     ntohl(immediate(static_cast<unsigned>(i))));
      }
    }
    return missing(done.size(), layout.count);
  }

  std::string judge(const ibv_wc& wc, uint64_t id, ibv_wc_opcode opcode) const {
    if (wc.status != IBV_WC_SUCCESS) {
      return words("request %" PRIu64 " ended with \"%s\" (vendor_err 0x%x)", wc.wr_id,
                   ibv_wc_status_str(wc.status), wc.vendor_err);
    }
    if (wc.wr_id != id) {
      return words("request %" PRIu64 " completed where %" PRIu64 " was due", wc.wr_id, id);
    }
    if (wc.opcode != opcode)
      return words("completion has opcode %d instead of %d", wc.opcode, opcode);
    if (wc.qp_num != link_.qp()->qp_num) return words("completion has qp_num 0x%x", wc.qp_num);
    return {};
  }

  // Awaits `count` completions of sends, from request `first` on.
  std::string await_sends(uint64_t first, size_t count, ibv_wc_opcode opcode) {
    const auto done = link_.await_sends(count);
    for (size_t i = 0; i < done.size(); ++i) {
      std::string problem = judge(done[i], first + i, opcode);
      if (!problem.empty()) return problem;
    }
    return missing(done.size(), count);
  }

  static std::string missing(size_t got, size_t expected) {
    if (got == expected) return {};
    return words("%zu of %zu completions came in time", got, expected);
  }

  // ---- atomics: all on one word, so each original value tells that they were done in order, once

  struct Atomic {
    uint64_t compare_add, swap;
  };

  void atomics(ibv_wr_opcode opcode, const std::vector<Atomic>& operations, uint64_t start) {
    const bool adds = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if ((features_ & kAtomics) == 0) {
      skip_ = "a device has no atomic operations";
      return;
    }
    // what must come back, and what must be there at the end
    std::vector<uint64_t> originals;
    uint64_t value = start;
    for (const Atomic& a : operations) {
      originals.push_back(value);
      if (adds) {
        value += a.compare_add;
      } else if (value == a.compare_add) {
        value = a.swap;
      }
    }
    const size_t at = 128;  // the word; its neighbours must stay
    auto words_here = reinterpret_cast<uint64_t*>(memory());
    std::fill_n(words_here, 64, 0x5a5a5a5a5a5a5a5aULL);
    if (!initiating_) memcpy(memory() + at, &start, 8);
    agree_or_end({});

    std::string problem;
    if (initiating_) {
      Requests requests;
      for (size_t i = 0; i < operations.size(); ++i) {
        ibv_send_wr& wr = requests.add(opcode, {{address() + at + 8 * i, 8, link_.lkey()}});
        wr.wr.atomic.remote_addr = remote_address_ + at;
        wr.wr.atomic.rkey = remote_rkey_;
        wr.wr.atomic.compare_add = operations[i].compare_add;
        wr.wr.atomic.swap = operations[i].swap;
      }
      requests.post(link_.qp());
      problem = await_sends(0, operations.size(), adds ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP);
    }
    agree_or_end(problem);

    std::vector<uint64_t> wanted(64, 0x5a5a5a5a5a5a5a5aULL);
    if (initiating_) {
      std::copy(originals.begin(), originals.end(), wanted.begin() + at / 8);
    } else {
      wanted[at / 8] = value;
    }
    for (size_t i = 0; i < wanted.size() && problem.empty(); ++i) {
      if (words_here[i] == wanted[i]) continue;
      problem =
          words("word %zd%s is 0x%" PRIx64 " instead of 0x%" PRIx64,
                static_cast<ssize_t>(i) - static_cast<ssize_t>(at / 8),
                initiating_ ? " of the originals" : " from the target", words_here[i], wanted[i]);
    }
    agree_data("after the atomics", problem);
    messages_ += operations.size();
    bytes_ += 8 * operations.size();
  }

  void fetch_and_add() {
    const uint64_t key = mixed(seed_ + ++serial_);
    std::vector<Atomic> list;
    for (unsigned i = 0; i < kDepth; ++i) list.push_back({mixed(key + i), 0});
    atomics(IBV_WR_ATOMIC_FETCH_AND_ADD, list, mixed(~key));
  }

  void compare_and_swap() {
    const uint64_t key = mixed(seed_ + ++serial_);
    std::vector<Atomic> list;
    uint64_t value = mixed(~key);
    for (unsigned i = 0; i < kDepth; ++i) {
      const uint64_t next = mixed(key + i);
      const bool match = i % 3 != 2;  // every third compares with another value and must not swap
      list.push_back({match ? value : value + 1, next});
      if (match) value = next;
    }
    atomics(IBV_WR_ATOMIC_CMP_AND_SWP, list, mixed(~key));
  }

  // ---- a memory window of the target: written through, then invalidated by the initiator's SEND

  void send_with_invalidate() {
    if ((features_ & kWindows) == 0) {
      skip_ = "a device has no memory windows of type 2";
      return;
    }
    struct Key {
      uint32_t value;
    };
    const Layout layout{4097, 1, 1};
    const uint64_t key = mixed(seed_ + ++serial_);
    paint(memory(), layout, key, initiating_);
    Window window;
    std::string problem;
    if (!initiating_) problem = open_window(layout, window);
    agree_or_end(problem);
    const Key theirs = peer_.exchange(Key{htonl(window ? window->rkey : 0)});

    if (initiating_) {
      Requests requests;
      ibv_send_wr& write = requests.add(IBV_WR_RDMA_WRITE, sges_of(layout, 0));
      write.send_flags = 0;
      write.wr.rdma.remote_addr = remote_address_ + layout.start(0);
      write.wr.rdma.rkey = ntohl(theirs.value);
      requests.add(IBV_WR_SEND_WITH_INV, {}).invalidate_rkey = ntohl(theirs.value);
      requests.post(link_.qp());
      problem = await_sends(1, 1, IBV_WC_SEND);
    } else {
      const auto done = link_.await_receives(1, peer_);
      problem = missing(done.size(), 1);
      if (problem.empty()) problem = judge(done[0], 0, IBV_WC_RECV);
      // rxe passes on the kernel's own flag, whose value is another one in user space
      const unsigned flag = link_.is_rxe() ? IBV_WC_IP_CSUM_OK | IBV_WC_WITH_INV : IBV_WC_WITH_INV;
      if (problem.empty() &&
          ((done[0].wc_flags & flag) == 0 || done[0].invalidated_rkey != window->rkey)) {
        problem =
            words("the receive says wc_flags 0x%x, invalidated_rkey 0x%x; the window's is 0x%x",
                  static_cast<unsigned>(done[0].wc_flags), done[0].invalidated_rkey, window->rkey);
      }
    }
    agree_or_end(problem);
    agree_data("through a window", compare(memory(), layout, key));
    messages_ += 2;
    bytes_ += layout.size;
  }

  // At the target: binds a window over its memory and posts the receive that will end it.
  std::string open_window(const Layout& layout, Window& window) {
    window.reset(ibv_alloc_mw(link_.domain(), IBV_MW_TYPE_2));
    if (!window) return words("cannot allocate a memory window: %s", strerror(errno));
    Requests requests;
    ibv_send_wr& bind = requests.add(IBV_WR_BIND_MW, {});
    bind.bind_mw.mw = window.get();
    bind.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    bind.bind_mw.bind_info = {link_.region(), address(), layout.total(), IBV_ACCESS_REMOTE_WRITE};
    requests.post(link_.qp());
    const std::string problem = await_sends(0, 1, IBV_WC_BIND_MW);
    if (!problem.empty()) return "binding a window: " + problem;
    window->rkey = bind.bind_mw.rkey;
    post_receives({0, 1, 1});
    return {};
  }

  // ---- refused: the target must not be touched, and the initiator must hear why

  void write_with_wrong_key() {
    const Layout layout{4097, 2, 1};
    const uint64_t key = mixed(seed_ + ++serial_);
    paint(memory(), layout, key, true);
    agree_or_end({});
    std::string problem;
    if (initiating_) {
      Requests requests;
      for (unsigned i = 0; i < 2; ++i) {
        // the other message: it would be seen if it arrived
        ibv_send_wr& wr = requests.add(IBV_WR_RDMA_WRITE, sges_of(layout, 1 - i));
        wr.wr.rdma.remote_addr = remote_address_ + layout.start(i);
        wr.wr.rdma.rkey = remote_rkey_ ^ 0x5500;
      }
      requests.post(link_.qp());
      const std::array<ibv_wc_status, 2> wanted{IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR};
      for (unsigned i = 0; i < 2 && problem.empty(); ++i) {
        const auto done = link_.await_sends(1);
        if (done.empty()) {
          problem = missing(i, 2);
        } else if (done[0].wr_id != i || done[0].status != wanted[i]) {
          problem = words("request %" PRIu64 " ended with \"%s\" instead of \"%s\"", done[0].wr_id,
                          ibv_wc_status_str(done[0].status), ibv_wc_status_str(wanted[i]));
        }
      }
    }
    agree_or_end(problem);
    agree_data("refused write", compare(memory(), layout, key));
    messages_ += 2;
  }

  Link& link_;
  Peer& peer_;
  const uint64_t remote_address_;
  const uint32_t remote_rkey_;
  const uint32_t features_;  // that both devices have
  const bool client_;
  const uint32_t iterations_;
  const uint64_t seed_;
  bool initiating_ = false;
  uint64_t serial_ = 0;  // of transfers; both sides count alike
  std::string problem_, skip_;
  uint64_t messages_ = 0, bytes_ = 0;
  unsigned ok_ = 0, failed_ = 0, skipped_ = 0;
};

bool run(const Options& options) {
  const bool client = !options.server.empty();
  at_step("setting up the device");
  Link link(options, kMemorySize);
  at_step("waiting for the other side");
  Peer peer =
      client ? Peer::connect_to(options.server, options.port) : Peer::wait_for_client(options.port);
  const Hello mine = link.hello(options);
  const Hello other = peer.exchange(mine);
  if (other.magic != mine.magic)
    throw Broken("the other side is another version of rc_check, or none");
  link.connect(other);
  printf("rc_check: %s, path MTU %u, seed %" PRIu64 "\n", link.description().c_str(), link.mtu(),
         uint64_t{be64toh((client ? mine : other).seed)});
  fflush(stdout);
  return Checks(link, peer, mine, other, client).run();
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse_options(count, arguments);
  signal(SIGALRM, on_alarm);
  alarm(options.limit_s);
  try {
    if (options.list) {
      list_gids();
      return 0;
    }
    return run(options) ? 0 : 1;
  } catch (const Broken& e) {
    fprintf(stderr, "rc_check: %s\n", e.what());
    return 1;
  }
}
