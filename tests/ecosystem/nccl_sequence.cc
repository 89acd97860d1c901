// Makes the same verbs calls as NCCL's network plug-in, in the same order: finds the library by
// dlopen, each function by dlvsym with its first symbol version, the device's location and the
// types of its GIDs in sysfs; then connects two queue pairs and writes with immediate data, reading
// back to flush. No RDMA library is linked.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <limits.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {

[[noreturn]] void give_up(const char* what, const std::string& which = "") {
  std::printf("FAILED: %s %s\n", what, which.c_str());
  std::exit(1);
}
void must(bool good, const char* what) {
  if (!good) give_up(what);
}

void* library;
template <typename F>
F* find(const char* name, const char* node = "IBVERBS_1.1") {
  void* const function = dlvsym(library, name, node);
  if (function == nullptr) give_up("no such symbol:", std::string(name) + "@" + node);
  return reinterpret_cast<F*>(function);
}
#define VERB(name) find<decltype(::name)>(#name)

// The index of a GID that is an IPv4 address with RoCE v2, according to the file of its type.
int choose_gid(ibv_context* context, const std::string& device, int table_length) {
  auto* const query_gid = VERB(ibv_query_gid);
  for (int i = 0; i < table_length; ++i) {
    ibv_gid gid;
    must(query_gid(context, 1, i, &gid) == 0, "ibv_query_gid");
    const uint8_t empty[16] = {};
    if (std::memcmp(gid.raw, empty, sizeof empty) == 0) continue;
    std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/gid_attrs/types/" +
                       std::to_string(i));
    std::string type;
    must(static_cast<bool>(std::getline(file, type)), "the type of a GID cannot be read");
    if (type == "RoCE v2" && gid.raw[10] == 0xFF && gid.raw[11] == 0xFF) return i;
  }
  give_up("no GID of type RoCE v2");
}

struct Side {
  ibv_cq* cq;
  ibv_qp* qp;
};

void connect(Side& side, uint32_t peer, const ibv_gid& gid, int index, ibv_mtu mtu) {
  auto* const modify = VERB(ibv_modify_qp);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  must(modify(side.qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ==
           0,
       "INIT");
  a = {};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = mtu;
  a.dest_qp_num = peer;
  a.max_dest_rd_atomic = 1;
  a.min_rnr_timer = 12;
  a.ah_attr.is_global = 1;
  a.ah_attr.grh.dgid = gid;
  a.ah_attr.grh.sgid_index = static_cast<uint8_t>(index);
  a.ah_attr.grh.hop_limit = 255;
  a.ah_attr.port_num = 1;
  must(modify(side.qp, &a,
              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
       "RTR");
  a = {};
  a.qp_state = IBV_QPS_RTS;
  a.timeout = 18;
  a.retry_cnt = 7;
  a.rnr_retry = 7;
  a.max_rd_atomic = 1;
  must(modify(side.qp, &a,
              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                  IBV_QP_MAX_QP_RD_ATOMIC) == 0,
       "RTS");
}

ibv_wc wait(ibv_cq* cq) {
  ibv_wc wc;
  int n = 0;
  while (n == 0) n = ibv_poll_cq(cq, 1, &wc);
  must(n == 1 && wc.status == IBV_WC_SUCCESS, "a completion with an error");
  return wc;
}

}  // namespace

int main() {
  for (const char* name : {"libibverbs.so", "libibverbs.so.1"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW);
  }
  must(library != nullptr, "neither libibverbs.so nor libibverbs.so.1 can be loaded");
  for (const char* name :
       {"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device",
        "ibv_close_device",    "ibv_get_async_event",  "ibv_ack_async_event", "ibv_query_device",
        "ibv_query_port",      "ibv_query_gid",        "ibv_query_qp",        "ibv_alloc_pd",
        "ibv_dealloc_pd",      "ibv_reg_mr",           "ibv_dereg_mr",        "ibv_create_cq",
        "ibv_destroy_cq",      "ibv_create_qp",        "ibv_modify_qp",       "ibv_destroy_qp",
        "ibv_fork_init",       "ibv_event_type_str"}) {
    find<void>(name);
  }
  find<void>("ibv_reg_mr_iova2", "IBVERBS_1.8");
  find<void>("ibv_query_ece", "IBVERBS_1.10");
  find<void>("ibv_set_ece", "IBVERBS_1.10");
  find<void>("ibv_reg_dmabuf_mr", "IBVERBS_1.12");

  must(VERB(ibv_fork_init)() == 0, "ibv_fork_init");
  int count = 0;
  ibv_device** const devices = find<ibv_device**(int*)>("ibv_get_device_list")(&count);
  must(devices != nullptr && count > 0, "no device");
  ibv_context* const context = find<ibv_context*(ibv_device*)>("ibv_open_device")(devices[0]);
  must(context != nullptr, "ibv_open_device");
  const std::string name = find<const char*(ibv_device*)>("ibv_get_device_name")(devices[0]);
  char place[PATH_MAX];
  must(realpath(("/sys/class/infiniband/" + name + "/device").c_str(), place) != nullptr,
       "the device's place in sysfs");

  ibv_port_attr port{};
  must(find<int(ibv_context*, uint8_t, ibv_port_attr*)>("ibv_query_port")(context, 1, &port) == 0,
       "ibv_query_port");
  must(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET,
       "the port is not active");
  const int index = choose_gid(context, name, port.gid_tbl_len);
  ibv_gid gid;
  must(VERB(ibv_query_gid)(context, 1, index, &gid) == 0, "ibv_query_gid");

  ibv_pd* const pd = VERB(ibv_alloc_pd)(context);
  constexpr size_t kBytes = 4 << 20;
  std::vector<uint8_t> from(kBytes), to(kBytes);
  for (size_t i = 0; i < kBytes; ++i) from[i] = static_cast<uint8_t>(i * 31 + i / 4096);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const auto registered = [&](std::vector<uint8_t>& memory) {
    auto* const reg_mr = find<ibv_mr*(ibv_pd*, void*, size_t, uint64_t, unsigned)>(
        "ibv_reg_mr_iova2", "IBVERBS_1.8");
    ibv_mr* const mr = reg_mr(pd, memory.data(), kBytes, reinterpret_cast<uint64_t>(memory.data()),
                              static_cast<unsigned>(access) | IBV_ACCESS_RELAXED_ORDERING);
    must(mr != nullptr, "ibv_reg_mr_iova2");
    return mr;
  };
  ibv_mr* const out = registered(from);
  ibv_mr* const in = registered(to);

  Side sides[2];
  for (Side& side : sides) {
    side.cq = VERB(ibv_create_cq)(context, 256, nullptr, nullptr, 0);
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = side.cq;
    attr.qp_type = IBV_QPT_RC;
    attr.cap = {.max_send_wr = 256,
                .max_recv_wr = 128,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    side.qp = VERB(ibv_create_qp)(pd, &attr);
    must(side.cq != nullptr && side.qp != nullptr, "a queue pair");
  }
  connect(sides[0], sides[1].qp->qp_num, gid, index, port.active_mtu);
  connect(sides[1], sides[0].qp->qp_num, gid, index, port.active_mtu);

  ibv_recv_wr receive{}, *bad_receive;
  must(ibv_post_recv(sides[1].qp, &receive, &bad_receive) == 0, "ibv_post_recv");
  ibv_sge sge{reinterpret_cast<uint64_t>(from.data()), kBytes, out->lkey};
  ibv_send_wr data{}, tail{}, *bad;
  data.opcode = IBV_WR_RDMA_WRITE;
  data.sg_list = &sge;
  data.num_sge = 1;
  data.wr.rdma = {reinterpret_cast<uint64_t>(to.data()), in->rkey};
  data.next = &tail;
  tail.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  tail.imm_data = 1234;
  tail.send_flags = IBV_SEND_SIGNALED;
  must(ibv_post_send(sides[0].qp, &data, &bad) == 0, "ibv_post_send");
  const ibv_wc told = wait(sides[1].cq);
  must(told.opcode == IBV_WC_RECV_RDMA_WITH_IMM && told.imm_data == 1234, "the immediate data");
  must(wait(sides[0].cq).opcode == IBV_WC_RDMA_WRITE, "the write's completion");
  must(from == to, "what was written");
  ibv_sge one{reinterpret_cast<uint64_t>(from.data()), 1, out->lkey};
  ibv_send_wr flush{};
  flush.opcode = IBV_WR_RDMA_READ;
  flush.sg_list = &one;
  flush.num_sge = 1;
  flush.send_flags = IBV_SEND_SIGNALED;
  flush.wr.rdma = data.wr.rdma;
  must(ibv_post_send(sides[0].qp, &flush, &bad) == 0, "ibv_post_send, read");
  must(wait(sides[0].cq).opcode == IBV_WC_RDMA_READ, "the read's completion");

  for (Side& side : sides) {
    must(VERB(ibv_destroy_qp)(side.qp) == 0 && VERB(ibv_destroy_cq)(side.cq) == 0, "destroying");
  }
  must(VERB(ibv_dereg_mr)(in) == 0 && VERB(ibv_dereg_mr)(out) == 0 && VERB(ibv_dealloc_pd)(pd) == 0,
       "freeing");
  must(VERB(ibv_close_device)(context) == 0, "closing");
  VERB(ibv_free_device_list)(devices);
  std::printf("ok: %s, GID index %d, %s\n", name.c_str(), index, place);
}
