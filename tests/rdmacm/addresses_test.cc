// Addresses and ports: results of binding and resolving, and conflicts between ports.
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <set>

#include "tests/rdmacm/cm_support.h"

namespace verbena::test {
namespace {

class Addresses : public testing::Test {
 protected:
  ChannelPtr channel_ = make_channel();

  IdPtr bound(const std::string& address, uint16_t port = 0, rdma_port_space space = RDMA_PS_TCP) {
    IdPtr id = make_id(channel_.get(), space);
    Address at = ip(address, port);
    EXPECT_EQ(rdma_bind_addr(id.get(), at.get()), 0) << strerror(errno);
    return id;
  }
  int bind_errno(const std::string& address, uint16_t port, rdma_port_space space = RDMA_PS_TCP,
                 const std::function<void(rdma_cm_id*)>& before = {}) {
    const IdPtr id = make_id(channel_.get(), space);
    if (before) before(id.get());
    Address at = ip(address, port);
    return rdma_bind_addr(id.get(), at.get()) == 0 ? 0 : errno;
  }
};

void set_id_flag(rdma_cm_id* id, int option, int value) {
  ASSERT_EQ(rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof value), 0);
}
void reuse(rdma_cm_id* id) { set_id_flag(id, RDMA_OPTION_ID_REUSEADDR, 1); }
void only_family(rdma_cm_id* id) { set_id_flag(id, RDMA_OPTION_ID_AFONLY, 1); }

// As with the kernel's rdma_cm. libfabric would use only the device that it gets by binding to
// 127.0.0.1.
TEST_F(Addresses, BindingToLoopbackFindsNoDevice) {
  const IdPtr id = bound("127.0.0.1");
  EXPECT_EQ(id->verbs, nullptr);
  EXPECT_EQ(id->pd, nullptr);
  EXPECT_EQ(text_of(rdma_get_local_addr(id.get())), "127.0.0.1");
  EXPECT_NE(source_port(id.get()), 0);
}

TEST_F(Addresses, BindingToIpv6LoopbackFindsNoDevice) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  const IdPtr id = bound("::1");
  EXPECT_EQ(id->verbs, nullptr);
  EXPECT_EQ(rdma_get_local_addr(id.get())->sa_family, AF_INET6);
  EXPECT_NE(source_port(id.get()), 0);
}

TEST_F(Addresses, AnIdentifierBoundToLoopbackResolvesFromItsPort) {
  const IdPtr id = bound("127.0.0.1");
  const uint16_t port = source_port(id.get());
  resolve(channel_.get(), id.get(), "127.0.0.1", 7777);
  ASSERT_NE(id->verbs, nullptr);
  EXPECT_STREQ(ibv_get_device_name(id->verbs->device), "verbena_lo");
  EXPECT_EQ(source_port(id.get()), port);
}

TEST_F(Addresses, ALinkLocalAddressNeedsItsInterface) {
  EXPECT_EQ(bind_errno("fe80::1", 0), EINVAL);
}

TEST_F(Addresses, IdentifiersOfADeviceShareItsDefaultPd) {
  const IdPtr a = resolve(channel_.get(), "127.0.0.1", 7777);
  const IdPtr b = resolve(channel_.get(), "127.0.0.1", 7777);
  ASSERT_NE(a->verbs, nullptr);
  EXPECT_EQ(a->verbs, b->verbs);
  EXPECT_EQ(a->pd, b->pd);
}

TEST_F(Addresses, AWildcardHasNoDevice) {
  const IdPtr id = bound("0.0.0.0");
  EXPECT_EQ(id->verbs, nullptr);
  EXPECT_EQ(id->pd, nullptr);
  EXPECT_NE(source_port(id.get()), 0);
}

TEST_F(Addresses, PortZeroSelectsAFreePort) {
  const IdPtr a = bound("127.0.0.1");
  const IdPtr b = bound("127.0.0.1");
  EXPECT_NE(source_port(a.get()), 0);
  EXPECT_NE(source_port(a.get()), source_port(b.get()));
}

TEST_F(Addresses, RejectsAUsedPort) {
  const IdPtr first = bound("127.0.0.1");
  const uint16_t port = source_port(first.get());
  EXPECT_EQ(bind_errno("127.0.0.1", port), EADDRINUSE);
  EXPECT_EQ(bind_errno("0.0.0.0", port), EADDRINUSE);
  if (has_ipv6()) {
    EXPECT_EQ(bind_errno("::", port), EADDRINUSE);
    EXPECT_EQ(bind_errno("::1", port), 0);
  }
}

TEST_F(Addresses, AWildcardUsesThePortOfEveryAddress) {
  const IdPtr first = bound("0.0.0.0");
  const uint16_t port = source_port(first.get());
  EXPECT_EQ(bind_errno("127.0.0.1", port), EADDRINUSE);
  EXPECT_EQ(bind_errno("0.0.0.0", port), EADDRINUSE);
  if (has_ipv6()) {
    EXPECT_EQ(bind_errno("::1", port), 0);
    EXPECT_EQ(bind_errno("::", port), EADDRINUSE);
    EXPECT_EQ(bind_errno("::", port, RDMA_PS_TCP, only_family), 0);
  }
}

TEST_F(Addresses, TheIpv6WildcardIncludesIpv4UnlessAfonlyIsSet) {
  if (!has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  const IdPtr both = bound("::");
  EXPECT_EQ(bind_errno("127.0.0.1", source_port(both.get())), EADDRINUSE);
  IdPtr one = make_id(channel_.get());
  only_family(one.get());
  Address any = ip("::");
  ASSERT_EQ(rdma_bind_addr(one.get(), any.get()), 0);
  EXPECT_EQ(bind_errno("127.0.0.1", source_port(one.get())), 0);
  EXPECT_EQ(bind_errno("::1", source_port(one.get())), EADDRINUSE);
}

TEST_F(Addresses, PortSpacesAreSeparate) {
  const IdPtr tcp = bound("127.0.0.1");
  const uint16_t port = source_port(tcp.get());
  EXPECT_EQ(bind_errno("127.0.0.1", port, RDMA_PS_UDP), 0);
  EXPECT_EQ(bind_errno("127.0.0.1", port, RDMA_PS_IB), 0);
  EXPECT_EQ(bind_errno("127.0.0.1", port, RDMA_PS_IPOIB), 0);
}

TEST_F(Addresses, DestroyingAnIdentifierFreesItsPort) {
  IdPtr first = listen_on(channel_.get(), "127.0.0.1");
  const uint16_t port = source_port(first.get());
  first.reset();
  const IdPtr second = listen_on(channel_.get(), "127.0.0.1", RDMA_PS_TCP, port);
  EXPECT_EQ(source_port(second.get()), port);
}

TEST_F(Addresses, ReuseaddrAllowsTwoBindsAndOneListener) {
  IdPtr first = make_id(channel_.get());
  reuse(first.get());
  Address any = ip("127.0.0.1");
  ASSERT_EQ(rdma_bind_addr(first.get(), any.get()), 0);
  const uint16_t port = source_port(first.get());
  EXPECT_EQ(bind_errno("127.0.0.1", port), EADDRINUSE);  // without RDMA_OPTION_ID_REUSEADDR
  IdPtr second = make_id(channel_.get());
  reuse(second.get());
  Address same = ip("127.0.0.1", port);
  ASSERT_EQ(rdma_bind_addr(second.get(), same.get()), 0) << strerror(errno);
  EXPECT_ERRNO(rdma_listen(first.get(), 1), EADDRINUSE);
  second.reset();
  EXPECT_EQ(rdma_listen(first.get(), 1), 0);
  EXPECT_EQ(bind_errno("127.0.0.1", port, RDMA_PS_TCP, reuse), EADDRINUSE);
}

// A child process that listens on the address and waits to be killed.
class OtherProcess {
 public:
  OtherProcess(const std::string& address, uint16_t port) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      rdma_event_channel* channel = rdma_create_event_channel();
      rdma_cm_id* id = nullptr;
      Address at = ip(address, port);
      const bool listening = channel != nullptr &&
                             rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0 &&
                             rdma_bind_addr(id, at.get()) == 0 && rdma_listen(id, 1) == 0;
      const uint16_t bound = listening ? source_port(id) : 0;
      (void)!write(ready[1], &bound, sizeof bound);
      for (;;) pause();
    }
    EXPECT_EQ(read(ready[0], &port_, sizeof port_), ssize_t{sizeof port_});
    close(ready[0]);
    close(ready[1]);
  }
  ~OtherProcess() { end(); }
  void end() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  uint16_t port() const { return port_; }

 private:
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

TEST_F(Addresses, RejectsAPortOfAnotherProcessUntilThatEnds) {
  OtherProcess exact("127.0.0.1", 0);
  ASSERT_NE(exact.port(), 0);
  EXPECT_EQ(bind_errno("127.0.0.1", exact.port()), EADDRINUSE);
  EXPECT_EQ(bind_errno("0.0.0.0", exact.port()), EADDRINUSE);
  OtherProcess wildcard("0.0.0.0", 0);
  ASSERT_NE(wildcard.port(), 0);
  EXPECT_EQ(bind_errno("127.0.0.1", wildcard.port()), EADDRINUSE);
  EXPECT_EQ(bind_errno("127.0.0.1", wildcard.port(), RDMA_PS_TCP, reuse), EADDRINUSE);
  EXPECT_EQ(bind_errno("0.0.0.0", wildcard.port()), EADDRINUSE);
  exact.end();
  wildcard.end();
  EXPECT_EQ(bind_errno("127.0.0.1", exact.port()), 0);
  EXPECT_EQ(bind_errno("0.0.0.0", wildcard.port()), 0);
}

// The list of all Unix sockets (/proc/net/unix) may be long or missing.
TEST_F(Addresses, AWildcardDetectsOtherProcessesWithoutProcNetUnix) {
  OtherProcess exact("127.0.0.1", 0);
  ASSERT_NE(exact.port(), 0);
  char root[] = "/tmp/verbena-empty-XXXXXX";
  ASSERT_NE(mkdtemp(root), nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (chroot(root) != 0 && (unshare(CLONE_NEWUSER) != 0 || chroot(root) != 0)) _exit(77);
    channel_ = make_channel();
    _exit(bind_errno("0.0.0.0", exact.port()) == EADDRINUSE &&
                  bind_errno("0.0.0.0", static_cast<uint16_t>(exact.port() ^ 1)) == 0
              ? 0
              : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  rmdir(root);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "chroot() is not allowed here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Addresses, AForkedChildDoesNotKeepPortsOfItsParent) {
  IdPtr id = bound("127.0.0.1");
  const uint16_t port = source_port(id.get());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)!write(ready[1], "x", 1);
    for (;;) pause();
  }
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  id.reset();
  EXPECT_EQ(bind_errno("127.0.0.1", port), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(Addresses, ResolvingFindsSourceAndDevice) {
  const IdPtr id = resolve(channel_.get(), "127.0.0.1", 7777);
  ASSERT_NE(id->verbs, nullptr);
  EXPECT_STREQ(ibv_get_device_name(id->verbs->device), "verbena_lo");
  EXPECT_NE(id->pd, nullptr);
  EXPECT_EQ(id->port_num, 1);
  EXPECT_EQ(ntohs(id->route.addr.addr.ibaddr.pkey), 0xFFFF);
  ibv_gid gid{};
  ASSERT_EQ(ibv_query_gid(id->verbs, 1, 0, &gid), 0);
  EXPECT_EQ(std::memcmp(&id->route.addr.addr.ibaddr.sgid, &gid, sizeof gid), 0);
  EXPECT_EQ(text_of(rdma_get_local_addr(id.get())), "127.0.0.1");
  EXPECT_EQ(text_of(rdma_get_peer_addr(id.get())), "127.0.0.1");
  EXPECT_EQ(destination_port(id.get()), 7777);
  EXPECT_NE(source_port(id.get()), 0);
}

TEST_F(Addresses, ResolvingARouteFillsThePathRecord) {
  const IdPtr id = resolve(channel_.get(), "127.0.0.1", 7777);
  ASSERT_EQ(id->route.num_paths, 1);
  const ibv_sa_path_rec& path = *id->route.path_rec;
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(id->verbs, 1, &port), 0);
  EXPECT_EQ(path.mtu, port.active_mtu);
  EXPECT_EQ(path.hop_limit, 64);
  EXPECT_EQ(path.packet_life_time, 16);
  EXPECT_NE(path.rate, 0);
  EXPECT_EQ(ntohs(path.pkey), 0xFFFF);
  EXPECT_EQ(std::memcmp(&path.sgid, &id->route.addr.addr.ibaddr.sgid, sizeof path.sgid), 0);
  EXPECT_EQ(std::memcmp(&path.dgid, &id->route.addr.addr.ibaddr.dgid, sizeof path.dgid), 0);
}

TEST_F(Addresses, TheWildcardAsDestinationMeansThisHost) {
  const IdPtr id = resolve(channel_.get(), "0.0.0.0", 7777);
  EXPECT_EQ(text_of(rdma_get_peer_addr(id.get())), "127.0.0.1");
}

TEST_F(Addresses, ResolvingUsesTheGivenSource) {
  const IdPtr id = make_id(channel_.get());
  Address from = ip("127.0.0.1", 0);
  Address to = ip("127.0.0.1", 7777);
  ASSERT_EQ(rdma_resolve_addr(id.get(), from.get(), to.get(), 1000), 0);
  expect_event(channel_.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(bind_errno("127.0.0.1", source_port(id.get())), EADDRINUSE);
}

TEST_F(Addresses, SourcePortsOfConnectionsDiffer) {
  std::vector<IdPtr> ids;
  std::set<uint16_t> ports;
  for (int i = 0; i < 200; ++i) {
    ids.push_back(resolve(channel_.get(), "127.0.0.1", 7777));
    ports.insert(source_port(ids.back().get()));
  }
  EXPECT_EQ(ports.size(), ids.size());
}

TEST_F(Addresses, RejectsWrongAddressFamilies) {
  const IdPtr id = make_id(channel_.get());
  sockaddr_un unix_address{};
  unix_address.sun_family = AF_UNIX;
  EXPECT_ERRNO(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&unix_address)), EINVAL);
  sockaddr_storage infiniband{};
  infiniband.ss_family = 27;  // AF_IB
  EXPECT_ERRNO(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&infiniband)), EAFNOSUPPORT);
  EXPECT_ERRNO(rdma_resolve_addr(id.get(), nullptr, reinterpret_cast<sockaddr*>(&infiniband), 1000),
               EAFNOSUPPORT);
  EXPECT_ERRNO(rdma_resolve_addr(id.get(), nullptr, nullptr, 1000), EINVAL);
  Address from = ip("127.0.0.1");
  Address to = ip("::1", 1);
  EXPECT_ERRNO(rdma_resolve_addr(id.get(), from.get(), to.get(), 1000), EINVAL);
}

TEST_F(Addresses, RejectsAnAddressOfAnotherHost) {
  const IdPtr id = make_id(channel_.get());
  Address foreign = ip("203.0.113.77");  // reserved for documentation
  EXPECT_ERRNO(rdma_bind_addr(id.get(), foreign.get()), EADDRNOTAVAIL);
  Address own = ip("127.0.0.1");
  EXPECT_EQ(rdma_bind_addr(id.get(), own.get()), 0);  // it may try again
}

TEST_F(Addresses, CallsFailWithoutADevice) {
  EXPECT_TRUE(
      passes_in_new_process("NoDevices.DISABLED_CallsReturnEnodev", "VERBENA_DEVICES=none"));
}

TEST(NoDevices, DISABLED_CallsReturnEnodev) {
  EXPECT_EQ(rdma_create_event_channel(), nullptr);
  EXPECT_EQ(errno, ENODEV);
  rdma_cm_id* id = nullptr;
  EXPECT_ERRNO(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), ENODEV);
  int count = 99;
  EXPECT_EQ(rdma_get_devices(&count), nullptr);
  EXPECT_EQ(count, 0);
}

TEST_F(Addresses, ListsAndCountsDevices) {
  int count = 0;
  ibv_context** devices = rdma_get_devices(&count);
  ASSERT_NE(devices, nullptr);
  int found = 0;
  for (; devices[found] != nullptr; ++found) {
    EXPECT_NE(ibv_get_device_name(devices[found]->device), nullptr);
  }
  EXPECT_EQ(found, count);
  EXPECT_GE(count, 1);
  ibv_context** again = rdma_get_devices(nullptr);
  EXPECT_EQ(again[0], devices[0]);
  rdma_free_devices(devices);
  rdma_free_devices(again);
}

constexpr const char* kOwnNamespace = "unshare -rn sh -c 'ip link set lo up; exec \"$0\" \"$@\"'";

void drop_capability(unsigned which) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  ASSERT_EQ(syscall(SYS_capget, &header, data), 0);
  data[which / 32].effective &= ~(1u << which % 32);
  ASSERT_EQ(syscall(SYS_capset, &header, data), 0);
}

TEST(LowPorts, NeedACapability) {
  if (std::system("unshare -rn true") != 0) GTEST_SKIP() << "cannot create namespaces";
  EXPECT_TRUE(
      passes_in_new_process("LowPortsOfANamespace.DISABLED_NeedACapability", kOwnNamespace));
}

using LowPortsOfANamespace = Addresses;
TEST_F(LowPortsOfANamespace, DISABLED_NeedACapability) {
  EXPECT_EQ(bind_errno("127.0.0.1", 80), 0);
  drop_capability(CAP_NET_BIND_SERVICE);
  EXPECT_EQ(bind_errno("127.0.0.1", 80), EACCES);
  EXPECT_EQ(bind_errno("0.0.0.0", 1023), EACCES);
  EXPECT_EQ(bind_errno("127.0.0.1", 80, RDMA_PS_UDP), EACCES);
  EXPECT_EQ(bind_errno("127.0.0.1", 1024), 0);
  EXPECT_EQ(bind_errno("127.0.0.1", 0), 0);
}

}  // namespace
}  // namespace verbena::test
