// Queries of the device, its port, its tables and its queue pairs.
#include <arpa/inet.h>
#include <endian.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/abi/loopback_support.h"

// Exported, but in no installed header. Programs that use these functions declare them this way.
extern "C" {
int ibv_query_gid_type(ibv_context*, uint8_t, unsigned int, unsigned int*);
const char* ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char* dir, const char* file, char* buf, size_t size);
}

namespace verbena::test {
namespace {

using Query = LoopbackTest;

TEST_F(Query, DeviceListIsStable) {
  ibv_device* first = loopback_device();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(loopback_device(), first);
  EXPECT_EQ(context_->device, first);
  EXPECT_EQ(first->node_type, IBV_NODE_CA);
  EXPECT_EQ(first->transport_type, IBV_TRANSPORT_IB);
  EXPECT_EQ(std::string(first->dev_name).substr(0, 6), "uverbs");
  EXPECT_EQ(std::string(first->ibdev_path), "/sys/class/infiniband/verbena_lo");
  EXPECT_NE(ibv_get_device_guid(first), 0u);
  EXPECT_EQ(ibv_get_device_index(first), -1);
  // The part of the driver behind ibv_device, which libmlx5 and libefa read.
  const auto* bytes = reinterpret_cast<const uint8_t*>(first);
  for (size_t i = sizeof(ibv_device); i < 712; ++i) EXPECT_EQ(bytes[i], 0) << i;
  ibv_device** list = ibv_get_device_list(nullptr);
  EXPECT_NE(list, nullptr);
  ibv_free_device_list(list);
}

TEST_F(Query, ReportsTheDevice) {
  ibv_device_attr a{};
  ASSERT_EQ(ibv_query_device(context_.get(), &a), 0);
  EXPECT_EQ(std::string(a.fw_ver).substr(0, 7), "verbena");
  EXPECT_EQ(a.node_guid, ibv_get_device_guid(context_->device));
  EXPECT_NE(a.sys_image_guid, 0u);
  EXPECT_EQ(a.phys_port_cnt, 1);
  EXPECT_EQ(a.max_pkeys, 1);
  EXPECT_EQ(a.atomic_cap, IBV_ATOMIC_GLOB);
  for (const int limit :
       {a.max_qp, a.max_qp_wr, a.max_sge, a.max_sge_rd, a.max_cq, a.max_cqe, a.max_mr, a.max_pd,
        a.max_mw, a.max_qp_rd_atom, a.max_qp_init_rd_atom, a.max_res_rd_atom}) {
    EXPECT_GT(limit, 0);
  }
  ibv_device_attr_ex ex;
  std::memset(&ex, 0xFF, sizeof ex);
  ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &ex), 0);
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): every byte is overwritten
  EXPECT_EQ(std::memcmp(&ex.orig_attr, &a, sizeof a), 0);
  EXPECT_EQ(ex.comp_mask, 0u);
  EXPECT_EQ(ex.phys_port_cnt_ex, 1u);
  const ibv_query_device_ex_input input{1};
  EXPECT_EQ(ibv_query_device_ex(context_.get(), &input, &ex), EINVAL);
}

TEST_F(Query, ReportsThePort) {
  ibv_port_attr port;
  std::memset(&port, 0xFF, sizeof port);
  ASSERT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.phys_state, 5);
  EXPECT_EQ(port.max_mtu, IBV_MTU_4096);
  EXPECT_EQ(port.active_mtu, IBV_MTU_4096);  // loopback has an MTU of 64 KiB
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.pkey_tbl_len, 1);
  EXPECT_EQ(port.lid, 0);
  EXPECT_EQ(port.max_msg_sz, 1u << 31);
  EXPECT_GT(port.gid_tbl_len, 0);
  EXPECT_NE(port.flags & IBV_QPF_GRH_REQUIRED, 0);
  EXPECT_EQ(port.port_cap_flags2, 0);
  for (const uint8_t other : {uint8_t{0}, uint8_t{2}, uint8_t{255}}) {
    EXPECT_EQ(ibv_query_port(context_.get(), other, &port), EINVAL);
  }
}

// A caller built with other headers passes a different size.
TEST_F(Query, QueryPortWritesNoMoreThanTheCallersSize) {
  std::array<uint8_t, 128> bytes;
  bytes.fill(0xCC);
  auto* attr = reinterpret_cast<ibv_port_attr*>(bytes.data());
  verbs_context* verbs = verbs_get_ctx(context_.get());
  ASSERT_NE(verbs, nullptr);
  EXPECT_EQ(verbs->query_port(context_.get(), 1, attr, 40), 0);
  EXPECT_EQ(bytes[40], 0xCC);
  EXPECT_EQ(verbs->query_port(context_.get(), 1, attr, 56), 0);
  EXPECT_EQ(bytes[55], 0);  // unknown fields are zero
  EXPECT_EQ(bytes[56], 0xCC);
}

TEST_F(Query, ReportsTheGidTable) {
  ibv_gid gid{};
  ASSERT_EQ(ibv_query_gid(context_.get(), 1, 0, &gid), 0);
  const uint8_t localhost[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127, 0, 0, 1};
  EXPECT_EQ(std::memcmp(gid.raw, localhost, 16), 0);
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context_.get(), 1, &port), 0);
  ASSERT_EQ(ibv_query_gid(context_.get(), 1, port.gid_tbl_len - 1, &gid), 0);
  EXPECT_EQ(gid.global.interface_id, 0u);  // empty
  for (const auto& [at, index] :
       {std::pair{1, -1}, std::pair{1, port.gid_tbl_len}, std::pair{2, 0}, std::pair{0, 0}}) {
    errno = 0;
    EXPECT_EQ(ibv_query_gid(context_.get(), static_cast<uint8_t>(at), index, &gid), -1);
    EXPECT_EQ(errno, EINVAL);
  }

  ibv_gid_entry entry{};
  ASSERT_EQ(ibv_query_gid_ex(context_.get(), 1, 0, &entry, 0), 0);
  EXPECT_EQ(entry.gid_type, unsigned{IBV_GID_TYPE_ROCE_V2});
  EXPECT_EQ(entry.port_num, 1u);
  EXPECT_GT(entry.ndev_ifindex, 0u);
  EXPECT_EQ(std::memcmp(entry.gid.raw, localhost, 16), 0);
  EXPECT_EQ(
      ibv_query_gid_ex(context_.get(), 1, static_cast<uint32_t>(port.gid_tbl_len - 1), &entry, 0),
      ENODATA);
  EXPECT_EQ(ibv_query_gid_ex(context_.get(), 1, 1000, &entry, 0), EINVAL);
  EXPECT_EQ(ibv_query_gid_ex(context_.get(), 1, 0, &entry, 1), EINVAL);

  std::array<ibv_gid_entry, 128> table{};
  const ssize_t count = ibv_query_gid_table(context_.get(), table.data(), table.size(), 0);
  ASSERT_GE(count, 1);
  EXPECT_EQ(table[0].gid_index, 0u);
  EXPECT_EQ(ibv_query_gid_table(context_.get(), table.data(), 0, 0), -EINVAL);

  unsigned type = 99;
  EXPECT_EQ(ibv_query_gid_type(context_.get(), 1, 0, &type), 0);
  EXPECT_EQ(type, 1u);  // sysfs numbering: RoCE v2
  EXPECT_EQ(ibv_query_gid_type(context_.get(), 1, 5000, &type), -1);
}

TEST_F(Query, ReportsThePkeyTable) {
  __be16 pkey = 0;
  ASSERT_EQ(ibv_query_pkey(context_.get(), 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, htons(0xFFFF));
  EXPECT_EQ(ibv_query_pkey(context_.get(), 1, 1, &pkey), -1);
  EXPECT_EQ(ibv_query_pkey(context_.get(), 2, 0, &pkey), -1);
  EXPECT_EQ(ibv_get_pkey_index(context_.get(), 1, htons(0xFFFF)), 0);
  EXPECT_EQ(ibv_get_pkey_index(context_.get(), 1, htons(0x7FFF)), -1);
}

TEST_F(Query, CompletionQueuesHaveDistinctHandles) {
  const CqPtr first(ibv_create_cq(context_.get(), 1, nullptr, nullptr, 0));
  const CqPtr second(ibv_create_cq(context_.get(), 1, nullptr, nullptr, 0));
  EXPECT_NE(first->handle, 0u);
  EXPECT_NE(first->handle, second->handle);
}

TEST_F(Query, ReportsTheAttributesOfAQueuePair) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(ibv_query_qp(a_.qp.get(), &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.cur_qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(attr.dest_qp_num, b_.qp->qp_num);
  EXPECT_EQ(attr.rq_psn, 0xFFFFF0u);
  EXPECT_EQ(attr.sq_psn, 0xFFFFF0u);
  EXPECT_EQ(attr.qp_access_flags, unsigned{kAllAccess & ~IBV_ACCESS_MW_BIND});
  EXPECT_EQ(attr.max_rd_atomic, 16);
  EXPECT_EQ(attr.max_dest_rd_atomic, 16);
  EXPECT_EQ(attr.timeout, 14);
  EXPECT_EQ(attr.retry_cnt, 7);
  EXPECT_EQ(attr.rnr_retry, 7);
  EXPECT_EQ(attr.min_rnr_timer, 1);
  EXPECT_EQ(attr.port_num, 1);
  EXPECT_EQ(attr.ah_attr.is_global, 1);
  EXPECT_EQ(attr.ah_attr.grh.hop_limit, 64);
  EXPECT_EQ(attr.ah_attr.grh.dgid.raw[12], 127);
  EXPECT_GE(attr.cap.max_send_wr, 64u);
  EXPECT_EQ(init.qp_type, IBV_QPT_RC);
  EXPECT_EQ(init.send_cq, a_.cq.get());
  EXPECT_EQ(init.recv_cq, a_.receive_cq.get());
  EXPECT_GT(init.cap.max_send_sge, 1u);
  EXPECT_GE(init.cap.max_inline_data, 256u);
  EXPECT_EQ(init.sq_sig_all, 0);
  EXPECT_EQ(a_.qp->qp_type, IBV_QPT_RC);
  EXPECT_EQ(a_.qp->pd, a_.pd.get());
  EXPECT_NE(a_.qp->qp_num, b_.qp->qp_num);

  attr = {};
  attr.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(ibv_modify_qp(a_.qp.get(), &attr, IBV_QP_STATE), 0);
  ASSERT_EQ(ibv_query_qp(a_.qp.get(), &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RESET);
  EXPECT_EQ(attr.dest_qp_num, 0u);
}

TEST(Strings, MatchRdmaCore) {
  EXPECT_STREQ(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded");
  EXPECT_STREQ(ibv_wc_status_str(no_such<ibv_wc_status>(-1)), "unknown");
  EXPECT_STREQ(ibv_wc_status_str(no_such<ibv_wc_status>(99)), "unknown");
  EXPECT_STREQ(ibv_event_type_str(IBV_EVENT_GID_CHANGE), "GID table change");
  EXPECT_STREQ(ibv_event_type_str(no_such<ibv_event_type>(20)), "unknown");
  EXPECT_STREQ(ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter");
  EXPECT_STREQ(ibv_node_type_str(IBV_NODE_UNKNOWN), "unknown");
  EXPECT_STREQ(ibv_port_state_str(IBV_PORT_ACTIVE), "active");
  EXPECT_STREQ(ibv_port_state_str(no_such<ibv_port_state>(6)), "unknown");
}

TEST(Rates, ConvertInBothDirections) {
  EXPECT_EQ(ibv_rate_to_mult(IBV_RATE_40_GBPS), 16);
  EXPECT_EQ(ibv_rate_to_mult(IBV_RATE_100_GBPS), -1);
  EXPECT_EQ(mult_to_ibv_rate(16), IBV_RATE_40_GBPS);
  EXPECT_EQ(mult_to_ibv_rate(-1), IBV_RATE_MAX);
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_MAX), -1);
  EXPECT_EQ(mbps_to_ibv_rate(103125), IBV_RATE_100_GBPS);
  EXPECT_EQ(mbps_to_ibv_rate(12345), IBV_RATE_MAX);
}

TEST(Sysfs, ReadsRealFiles) {
  const auto folder = std::filesystem::temp_directory_path() / "verbena-sysfs-test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "text") << "hello\n";
  char text[64] = "";
  EXPECT_EQ(ibv_read_sysfs_file(folder.c_str(), "text", text, sizeof text), 5);
  EXPECT_STREQ(text, "hello");
  EXPECT_EQ(ibv_read_sysfs_file(folder.c_str(), "absent", text, sizeof text), -1);
  std::filesystem::remove_all(folder);
  const int status = in_child([] {
    setenv("SYSFS_PATH", "/tmp/other///", 1);
    return std::string(ibv_get_sysfs_path()) == "/tmp/other" ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace verbena::test
