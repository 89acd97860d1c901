// The other process is this program. An environment variable makes it serve commands instead of
// testing.
#include "tests/runtime/cm_host_support.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <vector>

#include "base/exhaustion.h"
#include "cm/ip_addressing.h"
#include "runtime/counter_report.h"
#include "runtime/devices.h"
#include "tests/runtime/failing_allocator_support.h"

namespace verbena::runtime {
namespace {

constexpr const char* kRole = "VERBENA_TEST_CM_PROCESS";

wire::Gid parse_address(const std::string& text) {
  in6_addr a{};
  if (inet_pton(AF_INET6, text.c_str(), &a) == 1) return wire::Gid::from_ipv6(&a);
  in_addr b{};
  inet_pton(AF_INET, text.c_str(), &b);
  return wire::Gid::from_ipv4(&b);
}

std::string print(const Status& status) {
  return status.ok() ? "ok" : "errno " + std::to_string(status.error().code);
}

std::string print(Result<uint32_t> result) {
  return result.ok() ? "ok " + std::to_string(result.value())
                     : "errno " + std::to_string(result.error().code);
}

std::string print(const std::optional<cm::Event>& e) {
  if (!e) return "none";
  std::ostringstream text;
  text << cm::name_of(e->kind) << " id " << e->id << " reason " << static_cast<int>(e->reason)
       << " error " << e->error << " sidr " << static_cast<int>(e->sidr_status);
  return text.str();
}

// Creates a UD queue pair, as a program without rdma_cm does. All addresses listen.
Status open_datagrams(Nic& nic) {
  static core::CompletionQueue cq{16};
  core::QpConfig config;
  config.type = core::QpType::Ud;
  config.pd = 1;
  config.send_cq = config.receive_cq = &cq;
  config.max_send_wr = config.max_recv_wr = 4;
  config.max_send_sge = config.max_recv_sge = 1;
  auto qp = nic.create_qp(config, nullptr);
  if (!qp.ok()) return qp.error();
  using namespace core::qp_attr;
  core::QpAttributes attr;
  attr.state = core::QpState::Init;
  attr.port = 1;
  attr.qkey = 1;
  Status status = nic.modify_qp(*qp.value(), attr, kState | kPort | kPkeyIndex | kQkey);
  if (!status.ok()) return status;
  attr.state = core::QpState::Rtr;
  return nic.modify_qp(*qp.value(), attr, kState);
}

cm::ListenParameters listen_parameters(std::istringstream& words) {
  cm::ListenParameters p;
  std::string where;
  words >> p.service_id >> where;
  if (where == "any4") p.family = cm::Family::Ipv4;
  if (where == "any6") p.family = cm::Family::Ipv6;
  if (!where.empty() && where.rfind("any", 0) != 0) p.address = parse_address(where);
  return p;
}

// Registers and deregisters memory, as ibv_reg_mr and ibv_dereg_mr do.
std::string register_memory(Nic& nic, uint32_t times) {
  static std::byte memory[4096];
  for (uint32_t i = 0; i < times; ++i) {
    auto key = nic.memory().add_region(1, memory, sizeof memory, reinterpret_cast<uint64_t>(memory),
                                       core::kLocalWrite);
    if (!key.ok()) return print(key);
    const auto removed = nic.remove_region(key.value());
    if (!removed.ok()) return print(Status(removed.error()));
  }
  return "ok " + std::to_string(times);
}

// Two connected queue pairs of the process, and WRITEs from one to the other.
class Traffic {
 public:
  explicit Traffic(Nic& nic) : nic_(nic) {
    for (End& end : ends_) {
      core::QpConfig config;
      config.pd = 1;
      config.send_cq = config.receive_cq = &end.cq;
      config.max_send_wr = config.max_recv_wr = 64;
      config.max_send_sge = config.max_recv_sge = 1;
      auto qp = nic_.create_qp(config, nullptr);
      VERBENA_CHECK(qp.ok());
      end.qp = qp.value();
      Nic::Guard guard(nic_);
      auto key = guard.engine().memory().add_region(
          1, end.memory.data(), end.memory.size(), reinterpret_cast<uint64_t>(end.memory.data()),
          core::kLocalWrite | core::kRemoteWrite | core::kRemoteRead);
      VERBENA_CHECK(key.ok());
      end.key = key.value();
    }
    VERBENA_CHECK(connect(ends_[0], ends_[1]).ok() && connect(ends_[1], ends_[0]).ok());
  }

  // "ok" if all WRITEs complete and their bytes are written. In every other round only the
  // background thread makes progress.
  std::string run(uint32_t writes) {
    for (uint32_t i = 0; i < writes; ++i) {
      const auto fill = static_cast<std::byte>(++fills_);
      std::ranges::fill(ends_[0].memory, fill);
      core::SendRequest r;
      core::Sge sge{reinterpret_cast<uint64_t>(ends_[0].memory.data()),
                    static_cast<uint32_t>(ends_[0].memory.size()), ends_[0].key};
      r.op = core::SendOp::Write;
      r.flags = core::kSignaled;
      r.sges = {&sge, 1};
      r.remote_address = reinterpret_cast<uint64_t>(ends_[1].memory.data());
      r.rkey = ends_[1].key;
      {
        Nic::Guard guard(nic_);
        const Status posted = guard.engine().post_send(*ends_[0].qp, r, now());
        if (!posted.ok()) return print(posted);
        guard.lane().after_post(*ends_[0].qp);
      }
      core::Completion c;
      const Instant limit = now() + seconds(20);
      while (ends_[0].cq.poll(&c, 1) == 0) {
        if (now() > limit) return "no completion";
        if (i % 2 == 0) nic_.lanes().first().turn_for_poller();
        if (i % 2 == 1) poll(nullptr, 0, 1);
      }
      if (c.status != core::WcStatus::Success) {
        return "status " + std::to_string(static_cast<int>(c.status));
      }
      if (std::ranges::count(ends_[1].memory, fill) != std::ssize(ends_[1].memory)) return "bytes";
    }
    return "ok";
  }

 private:
  struct End {
    core::CompletionQueue cq{64};
    core::QueuePair* qp = nullptr;
    std::vector<std::byte> memory = std::vector<std::byte>(20'000);
    uint32_t key = 0;
  };

  Status connect(End& from, const End& to) {
    using namespace core::qp_attr;
    core::QpAttributes attr;
    attr.state = core::QpState::Init;
    attr.port = 1;
    attr.access = core::kRemoteWrite;
    Status status = nic_.modify_qp(*from.qp, attr, kState | kPort | kPkeyIndex | kAccessFlags);
    if (!status.ok()) return status;
    attr.state = core::QpState::Rtr;
    attr.path_mtu = wire::Mtu::k1024;
    attr.address.is_global = true;
    attr.address.destination = nic_.gid(0);
    attr.dest_qpn = to.qp->qpn();
    attr.max_dest_read_atomic = attr.max_read_atomic = 4;
    attr.min_rnr_timer = 1;
    status = nic_.modify_qp(
        *from.qp, attr,
        kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer);
    if (!status.ok()) return status;
    attr.state = core::QpState::Rts;
    attr.timeout = 13;
    attr.retry_count = attr.rnr_retry = 7;
    return nic_.modify_qp(*from.qp, attr,
                          kState | kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic);
  }

  Nic& nic_;
  std::array<End, 2> ends_;
  unsigned fills_ = 0;
};

// fail background|all|none FIRST COUNT: see failing_allocator_support.h. Returns "ok" and the
// number of allocations since the last call.
std::string fail_allocations(std::istringstream& words) {
  std::string threads;
  int64_t first = 0;
  int64_t count = 0;
  words >> threads >> first >> count;
  const int64_t seen = test::allocations_seen();
  test::fail_allocations(threads == "background" ? test::FailIn::BackgroundThreads
                         : threads == "all"      ? test::FailIn::AllThreads
                                                 : test::FailIn::NoThread,
                         first, count);
  return "ok " + std::to_string(seen);
}

std::string execute(CmHost& host, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  ConnectionManager& cm = host.manager();
  if (command == "listen") return print(cm.listen(listen_parameters(words)));
  if (command == "connect" || command == "sidr") {
    uint64_t service = 0;
    words >> service;
    if (command == "connect") {
      cm::ConnectParameters p = host.to(service);
      if (uint32_t qpn = 0; words >> qpn) p.qpn = wire::Qpn(qpn);
      return print(cm.connect(p));
    }
    cm::SidrParameters p;
    p.addresses = host.to(service).addresses;
    return print(cm.resolve_sidr(p));
  }
  if (command == "reach") {
    std::string where;
    uint64_t service = 0;
    words >> where >> service;
    cm::ConnectParameters p = host.to(service);
    p.addresses.peer_gid = p.addresses.peer_ip = parse_address(where);
    return print(cm.connect(p));
  }
  if (command == "run") return std::system(line.c_str() + command.size()) == 0 ? "ok" : "failed";
  if (command == "fail") return fail_allocations(words);
  if (command == "event") {
    int64_t timeout = 10'000;
    words >> timeout;
    return print(host.next_event(milliseconds(timeout)));
  }
  if (command == "counter") {
    std::string name;
    words >> name;
    return "ok " + std::to_string(host.counter(name));
  }
  uint32_t id = 0;
  words >> id;
  if (command == "traffic") {
    static Traffic traffic(host.nic());
    return traffic.run(id);
  }
  if (command == "register") return register_memory(host.nic(), id);
  if (command == "stop") return print(cm.stop_listening(id));
  if (command == "accept") {
    cm::AcceptParameters p;
    p.qpn = wire::Qpn(id & 0xFFFFFF);
    return print(cm.accept(id, p));
  }
  if (command == "reply") return print(cm.reply_sidr(id, {}));
  if (command == "establish") return print(cm.establish(id, {}));
  if (command == "reject") return print(cm.reject(id, cm::RejectReason::Consumer, {}, {}));
  if (command == "disconnect") return print(cm.disconnect(id, {}));
  if (command == "destroy") return cm.destroy(id), "ok";
  return "unknown command";
}

// Serves until the pipe closes. "plain": no connection manager, only a UD queue pair.
[[noreturn]] void serve() {
  std::string line;
  {
    std::unique_ptr<CmHost> host;
    std::shared_ptr<Nic> plain;
    while (std::getline(std::cin, line)) {
      std::string reply;
      if (line == "plain") {
        for (const DeviceInfo& device : discover_devices("").devices) {
          if (device.loopback) plain = Nic::open(device).value();
        }
        reply = print(open_datagrams(*plain));
      } else if (line == "link up") {  // the device must exist before it is opened
        reply = std::system("ip link set lo up") == 0 ? "ok" : "failed";
      } else if (line == "exit") {
        std::exit(0);
      } else if (line.rfind("counters", 0) == 0 && plain) {
        reply = plain->counters_text();
        std::ranges::replace(reply, '\n', ' ');
      } else {
        if (!host) host = std::make_unique<CmHost>();
        try {
          reply = execute(*host, line);
        } catch (const std::bad_alloc&) {
          test::fail_allocations(test::FailIn::NoThread, 0, 0);
          reply = "no memory";
        }
      }
      std::cout << reply << std::endl;
    }
  }
  _exit(0);
}

// Before gtest's main().
[[gnu::constructor(65535)]] void serve_if_requested() {
  if (getenv(kRole) == nullptr) return;
  static std::ios_base::Init streams;
  serve();
}

}  // namespace

CmHost::CmHost() {
  for (const DeviceInfo& device : discover_devices("").devices) {
    if (!device.loopback) continue;
    auto opened = Nic::open(device);
    VERBENA_CHECK(opened.ok());
    nic_ = opened.value();
  }
  VERBENA_CHECK(nic_ != nullptr);
  address_ = nic_->gid(0);
  manager_ = nic_->connection_manager();
  manager_->set_sink(this);
}

CmHost::~CmHost() { manager_->set_sink(nullptr); }

bool CmHost::on_event(const cm::Event& event) noexcept {
  const std::lock_guard lock(mutex_);
  if (!try_allocating([&] { events_.push_back(event); })) return false;
  event_added_.notify_one();
  return true;
}

std::optional<cm::Event> CmHost::next_event(Duration timeout) {
  std::unique_lock lock(mutex_);
  event_added_.wait_for(lock, std::chrono::nanoseconds(timeout.ns),
                        [&] { return !events_.empty(); });
  if (events_.empty()) return std::nullopt;
  const cm::Event event = events_.front();
  events_.pop_front();
  return event;
}

cm::ConnectParameters CmHost::to(uint64_t service) const {
  static std::atomic<uint32_t> qpn{0x1000 + (static_cast<uint32_t>(getpid()) & 0xFFFF) * 16};
  cm::ConnectParameters p;
  p.addresses.local_gid = p.addresses.local_ip = address_;
  p.addresses.peer_gid = p.addresses.peer_ip = address_;
  p.addresses.local_port = 40000;
  p.addresses.service_id = service;
  p.qpn = wire::Qpn(qpn++);
  return p;
}

uint64_t CmHost::counter(const std::string& name) {
  std::string all = nic_->counters_text();
  while (all.find("(busy") != std::string::npos) {  // during a turn
    poll(nullptr, 0, 1);
    all = nic_->counters_text();
  }
  for (const DeviceCounters& device : parse_counters(all)) {
    for (const NamedCounter& c : device.values) {
      if (c.name == name) return c.value;
    }
  }
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

CmProcess::CmProcess(const std::string& environment, bool own_namespace) {
  int to[2], from[2];
  VERBENA_CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
  const std::string role = std::string(kRole) + "=1";
  std::vector<char*> variables;
  for (char** v = environ; *v != nullptr; ++v) variables.push_back(*v);
  variables.push_back(const_cast<char*>(role.c_str()));
  if (!environment.empty()) variables.push_back(const_cast<char*>(environment.c_str()));
  variables.push_back(nullptr);
  char self[4096] = {};
  VERBENA_CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const char* const plain[] = {self, nullptr};
  const char* const in_namespace[] = {"unshare", "-rn", self, nullptr};
  const char* const* const arguments = own_namespace ? in_namespace : plain;
  pid_ = vfork();
  if (pid_ == 0) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    execvpe(arguments[0], const_cast<char**>(arguments), variables.data());
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  in_ = to[1];
  out_ = from[0];
}

CmProcess::~CmProcess() {
  close(in_);
  close(out_);
  kill();
}

void CmProcess::stop() {
  ASSERT_EQ(::kill(pid_, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  ASSERT_TRUE(WIFSTOPPED(status));
}

void CmProcess::resume() { ASSERT_EQ(::kill(pid_, SIGCONT), 0); }

void CmProcess::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string CmProcess::ask(const std::string& command) {
  const std::string line = command + "\n";
  if (write(in_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return "(ended)";
  std::string reply;
  char c = 0;
  pollfd readable{.fd = out_, .events = POLLIN, .revents = 0};
  while (poll(&readable, 1, 30'000) == 1 && read(out_, &c, 1) == 1 && c != '\n') reply += c;
  return c == '\n' ? reply : "(no reply)";
}

uint32_t CmProcess::number(const std::string& command) {
  const std::string reply = ask(command);
  unsigned value = 0;
  if (std::sscanf(reply.c_str(), "ok %u", &value) != 1) {
    ADD_FAILURE() << command << ": " << reply;
  }
  return value;
}

}  // namespace verbena::runtime
