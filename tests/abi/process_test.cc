// Effects of the library on its process: threads, descriptors, signals, fork and exec.
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "tests/abi/loopback_support.h"
#include "tests/support/fork_watch.h"

namespace verbena::test {
namespace {

TEST(Process, StartsNoThreadBeforeADeviceIsOpened) {
  const size_t before = thread_count();
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  EXPECT_EQ(thread_count(), before);
  ibv_free_device_list(list);
}

TEST(Process, CloseReleasesThreadsAndDescriptors) {
  open_loopback();  // creates everything that is created once per process
  const auto descriptors = open_descriptors();
  const size_t threads = thread_count();
  for (int i = 0; i < 5; ++i) {
    ContextPtr context = open_loopback();
    ASSERT_NE(context, nullptr);
    ContextPtr second = open_loopback();
    PdPtr pd(ibv_alloc_pd(context.get()));
    ChannelPtr channel(ibv_create_comp_channel(context.get()));
    CqPtr cq(ibv_create_cq(context.get(), 16, nullptr, channel.get(), 0));
    ibv_qp_init_attr init = rc_attributes(cq.get(), cq.get());
    QpPtr qp(ibv_create_qp(pd.get(), &init));
    EXPECT_NE(qp, nullptr);
    EXPECT_GT(thread_count(), threads);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(thread_count(), threads);
}

TEST(Process, CloseWithObjectsIsSafe) {
  open_loopback();
  const auto descriptors = open_descriptors();
  ibv_context* context = open_loopback().release();
  ibv_pd* pd = ibv_alloc_pd(context);
  ibv_cq* cq = ibv_create_cq(context, 16, nullptr, nullptr, 0);
  ibv_qp_init_attr init = rc_attributes(cq, cq);
  ibv_qp* qp = ibv_create_qp(pd, &init);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(ibv_close_device(context), 0);
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(Process, BlocksSignalsInItsThreads) {
  ContextPtr context = open_loopback();
  ASSERT_NE(context, nullptr);
  DIR* folder = opendir("/proc/self/task");
  int ours = 0;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] == '.' || std::stoi(entry->d_name) == getpid()) continue;
    std::ifstream status(std::string("/proc/self/task/") + entry->d_name + "/status");
    std::string line, blocked;
    while (std::getline(status, line)) {
      if (line.starts_with("SigBlk:\t")) blocked = line.substr(8);
    }
    ++ours;  // this program itself starts no threads here
    const uint64_t mask = std::stoull(blocked, nullptr, 16);
    for (const int signal :
         {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGPROF, SIGHUP, SIGPIPE}) {
      EXPECT_NE(mask >> (signal - 1) & 1, 0u) << "signal " << signal;
    }
  }
  closedir(folder);
  EXPECT_GE(ours, 1);
}

TEST(Process, ExecInheritsNoDescriptor) {
  const auto before = open_descriptors();
  ContextPtr context = open_loopback();
  ASSERT_NE(context, nullptr);
  ChannelPtr channel(ibv_create_comp_channel(context.get()));
  for (const std::string& entry : open_descriptors()) {
    if (before.contains(entry)) continue;
    const int fd = std::stoi(entry);
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0) << entry << " has no FD_CLOEXEC";
  }
}

class Fork : public LoopbackTest {};

TEST_F(Fork, TrafficCallsFailInTheChild) {
  const int status = in_child([&] {
    ibv_sge sge = a_.sge(0, 8);
    ibv_send_wr send = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
    ibv_send_wr* bad_send = nullptr;
    ibv_recv_wr receive{1, nullptr, &sge, 1};
    ibv_recv_wr* bad_receive = nullptr;
    ibv_wc wc{};
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    ibv_async_event event{};
    ibv_cq* cq = nullptr;
    void* cq_context = nullptr;
    attr.qp_state = IBV_QPS_ERR;
    int step = 1;
    const auto failed = [&](bool as_expected) { return as_expected ? (++step, false) : true; };
    if (failed(ibv_post_send(a_.qp.get(), &send, &bad_send) == EIO && bad_send == &send))
      return step;
    if (failed(ibv_post_recv(a_.qp.get(), &receive, &bad_receive) == EIO)) return step;
    if (failed(ibv_poll_cq(a_.cq.get(), 1, &wc) < 0)) return step;
    if (failed(ibv_req_notify_cq(a_.cq.get(), 0) == EIO)) return step;
    if (failed(ibv_modify_qp(a_.qp.get(), &attr, IBV_QP_STATE) == EIO)) return step;
    if (failed(ibv_resize_cq(a_.cq.get(), 10) == EIO)) return step;
    if (failed(ibv_create_cq(context_.get(), 8, nullptr, nullptr, 0) == nullptr && errno == EIO)) {
      return step;
    }
    if (failed(ibv_create_comp_channel(context_.get()) == nullptr && errno == EIO)) return step;
    if (failed(ibv_get_cq_event(a_.channel.get(), &cq, &cq_context) == -1 && errno == EIO))
      return step;
    if (failed(ibv_get_async_event(context_.get(), &event) == -1 && errno == EIO)) return step;
    init = rc_attributes(a_.cq.get(), a_.cq.get());
    if (failed(ibv_create_qp(a_.pd.get(), &init) == nullptr && errno == EIO)) return step;
    // Destroying only frees memory.
    if (failed(ibv_destroy_qp(a_.qp.get()) == 0 && ibv_destroy_qp(b_.qp.get()) == 0)) return step;
    if (failed(ibv_destroy_cq(a_.cq.get()) == 0 && ibv_destroy_cq(a_.receive_cq.get()) == 0)) {
      return step;
    }
    if (failed(ibv_destroy_comp_channel(a_.channel.get()) == 0)) return step;
    if (failed(ibv_dereg_mr(a_.mr.get()) == 0)) return step;
    if (failed(ibv_dealloc_pd(a_.pd.get()) == 0)) return step;
    if (failed(ibv_close_device(context_.get()) == 0)) return step;
    return 0;
  });
  EXPECT_EQ(status, 0) << "the step at which the child stopped";

  ibv_sge sge = a_.sge(0, 8);  // the parent is not affected
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
}

TEST_F(Fork, ChildQueriesTheInheritedContext) {
  const int status = in_child([&] {
    ibv_device_attr device{};
    ibv_port_attr port{};
    ibv_gid gid{};
    ibv_gid_entry entries[64];
    uint16_t pkey = 0;
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    if (ibv_query_device(context_.get(), &device) != 0 || device.max_qp == 0) return 1;
    ibv_device_attr_ex extended{};
    if (ibv_query_device_ex(context_.get(), nullptr, &extended) != 0) return 2;
    if (ibv_query_port(context_.get(), 1, &port) != 0 || port.state != IBV_PORT_ACTIVE) return 3;
    if (ibv_query_gid(context_.get(), 1, 0, &gid) != 0) return 4;
    if (ibv_query_gid_table(context_.get(), entries, 64, 0) < 1) return 5;
    if (ibv_query_pkey(context_.get(), 1, 0, &pkey) != 0) return 6;
    if (ibv_query_qp(a_.qp.get(), &attr, 0, &init) != 0 || attr.qp_state != IBV_QPS_RTS) return 7;
    return 0;
  });
  EXPECT_EQ(status, 0) << "the step at which the child stopped";
}

TEST_F(Fork, ChildRegistersMemoryOnTheInheritedContext) {
  const int status = in_child([&] {
    PdPtr pd(ibv_alloc_pd(context_.get()));
    if (pd == nullptr) return 1;
    MrPtr mr(ibv_reg_mr(pd.get(), a_.memory.data(), 4096, kAllAccess));
    MrPtr inherited(ibv_reg_mr(a_.pd.get(), a_.memory.data(), 4096, kAllAccess));
    if (mr == nullptr || inherited == nullptr || mr->lkey == inherited->lkey) return 2;
    if (ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0) != 0) return 3;
    MwPtr mw(ibv_alloc_mw(pd.get(), IBV_MW_TYPE_1));
    if (mw == nullptr) return 4;
    ibv_alloc_dm_attr attr{.length = 4096, .log_align_req = 0, .comp_mask = 0};
    ibv_dm* dm = ibv_alloc_dm(context_.get(), &attr);
    const uint32_t word = 0x12345678;
    uint32_t seen = 0;
    if (dm == nullptr || ibv_memcpy_to_dm(dm, 8, &word, 4) != 0) return 5;
    if (ibv_memcpy_from_dm(&seen, dm, 8, 4) != 0 || seen != word) return 6;
    ibv_mr* of_dm = ibv_reg_dm_mr(pd.get(), dm, 0, 4096, IBV_ACCESS_ZERO_BASED);
    if (of_dm == nullptr || ibv_dereg_mr(of_dm) != 0 || ibv_free_dm(dm) != 0) return 7;
    return 0;
  });
  EXPECT_EQ(status, 0) << "the step at which the child stopped";
}

// Threads of the child may hold a lock of the inherited device during the second fork.
TEST_F(Fork, GrandchildRegistersMemoryWhileThreadsOfTheChildDo) {
  const int status = in_child([&] {
    const auto register_once = [&] {
      const MrPtr mr(ibv_reg_mr(a_.pd.get(), a_.memory.data(), 4096, kAllAccess));
      return mr != nullptr;
    };
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        while (!stop) register_once();
      });
    }
    int failed = 0;
    for (int i = 0; i < 50 && failed == 0; ++i) {
      const pid_t grandchild = fork();
      if (grandchild == 0) {
        alarm(20);
        _exit(register_once() ? 0 : 1);
      }
      int how = -1;
      if (grandchild < 0 || waitpid(grandchild, &how, 0) != grandchild || how != 0) failed = 1;
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    return failed;
  });
  EXPECT_EQ(status, 0) << "a grandchild hung or failed";
}

// Keys of the child must not appear in the parent's exposure.
TEST_F(Fork, PeersOfTheParentCannotAccessRegionsOfTheChild) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const int status = in_child([&] {
    const MrPtr mr(ibv_reg_mr(b_.pd.get(), b_.memory.data(), 4096, kAllAccess));
    if (mr == nullptr) return 1;
    const ssize_t written = write(pipe_fds[1], &mr->rkey, sizeof mr->rkey);
    (void)ibv_dereg_mr(b_.mr.get());  // only the child's copy; the parent's region stays
    return written == sizeof mr->rkey ? 0 : 2;
  });
  ASSERT_EQ(status, 0);
  uint32_t rkey = 0;
  ASSERT_EQ(read(pipe_fds[0], &rkey, sizeof rkey), static_cast<ssize_t>(sizeof rkey));
  close(pipe_fds[0]);
  close(pipe_fds[1]);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
  wr.wr.rdma.rkey = rkey;
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Fork, HandlersInTheChildNeitherAllocateNorLock) { expect_safe_fork_handlers(); }

void expect_no_descriptor_in_child() {
  const auto in_parent = open_descriptors();
  const int status = in_child([&] {
    for (const std::string& entry : open_descriptors()) {
      const bool device_like =
          entry.find("socket:") != entry.npos || entry.find("eventfd") != entry.npos ||
          entry.find("eventpoll") != entry.npos || entry.find("memfd") != entry.npos;
      if (device_like && in_parent.contains(entry)) return 1;
    }
    return 0;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(Fork, ChildInheritsNoDescriptorOfTheDevice) {
  ContextPtr second = open_loopback();
  expect_no_descriptor_in_child();
}

TEST_F(Fork, ChildInheritsNoDescriptorOfAClosedContextWithRemainingObjects) {
  ContextPtr closed = open_loopback();
  const ChannelPtr remaining(ibv_create_comp_channel(closed.get()));
  closed.reset();
  expect_no_descriptor_in_child();
}

// Their numbers are those of the parent's descriptors that the fork closed.
TEST_F(Fork, ChildKeepsItsDescriptorsWhenItClosesTheInheritedDevice) {
  const auto before = open_descriptors();
  const int status = in_child([&] {
    int last = 0;
    while (last < 256) {
      last = dup(0);
      if (last < 0) return 1;
    }
    { const Side a = std::move(a_), b = std::move(b_); }
    if (ibv_close_device(context_.get()) != 0) return 2;
    for (int fd = 0; fd <= last; ++fd) {
      if (fcntl(fd, F_GETFD) < 0) return 3;
    }
    return 0;
  });
  EXPECT_EQ(status, 0) << "the step at which the child stopped";
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(Fork, ChildOpensItsOwnDevice) {
  const int status = in_child([] {
    ContextPtr context = open_loopback();
    if (context == nullptr) return 1;
    PdPtr pd(ibv_alloc_pd(context.get()));
    if (pd == nullptr) return 2;
    CqPtr cq(ibv_create_cq(context.get(), 16, nullptr, nullptr, 0));
    uint64_t memory[2] = {42, 0};
    MrPtr mr(ibv_reg_mr(pd.get(), memory, sizeof memory, kAllAccess));
    if (mr == nullptr) return 3;
    ibv_qp_init_attr init = rc_attributes(cq.get(), cq.get());
    QpPtr qp(ibv_create_qp(pd.get(), &init));
    if (qp == nullptr) return 4;
    // A queue pair connected to itself.
    if (to_init(qp.get()) != 0 || to_rtr(qp.get(), qp->qp_num) != 0 || to_rts(qp.get()) != 0)
      return 5;
    ibv_sge sge{reinterpret_cast<uint64_t>(memory), 8, mr->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(&memory[1]);
    wr.wr.rdma.rkey = mr->rkey;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(qp.get(), &wr, &bad) != 0) return 6;
    if (wait_for_completion(cq.get()).status != IBV_WC_SUCCESS) return 7;
    return memory[1] == 42 ? 0 : 8;
  });
  EXPECT_EQ(status, 0);
  ibv_sge sge = a_.sge(0, 8);
  ibv_send_wr wr = rdma(IBV_WR_RDMA_WRITE, &sge, b_, 0);
  ASSERT_EQ(a_.send(wr), 0);
  EXPECT_EQ(wait_for_completion(a_.cq.get()).status, IBV_WC_SUCCESS);
}

// Whether a socket has an address that others send to: the RoCE port, or a name in the slot
// directory.
bool has_address(int fd) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &bytes) != 0) return false;
  if (name.ss_family == AF_UNIX) return bytes > sizeof name.ss_family;
  const auto& ip =
      reinterpret_cast<const sockaddr_in&>(name);  // the port is at the same offset for IPv6
  return (name.ss_family == AF_INET || name.ss_family == AF_INET6) && ip.sin_port == htons(4791);
}

// A socket in the child would receive packets of its parent's next device.
TEST(Process, ForkWhileAnotherThreadOpensAndClosesInheritsNoSocket) {
  open_loopback();
  const auto before = open_descriptors();
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) EXPECT_NE(open_loopback(), nullptr);
  });
  for (int i = 0; i < 100; ++i) {
    const int sockets = in_child([&] {
      return static_cast<int>(std::ranges::count_if(open_descriptors(), [&](const auto& entry) {
        return !before.contains(entry) && has_address(std::stoi(entry));
      }));
    });
    EXPECT_EQ(sockets, 0);
  }
  done = true;
  other.join();
}

TEST(Process, ForkSupportIsNotNeeded) {
  EXPECT_EQ(ibv_fork_init(), 0);
  EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
}

}  // namespace
}  // namespace verbena::test
