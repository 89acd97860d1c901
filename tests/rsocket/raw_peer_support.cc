// See raw_peer_support.h.
#include "tests/rsocket/raw_peer_support.h"

#include <arpa/inet.h>
#include <rdma/rdma_verbs.h>

#include <cerrno>
#include <cstring>

namespace verbena::test {

namespace {
constexpr int kReceives = 64;
constexpr int kTimeoutMs = 5000;
}  // namespace

std::vector<std::byte> stored(const rsocket::ConnectData& data) {
  std::vector<std::byte> bytes(rsocket::ConnectData::kSize);
  data.store(bytes.data());
  return bytes;
}

SyncIdPtr raw_listener(Address* at) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP), 0) << strerror(errno);
  Address any = ip("127.0.0.1");
  EXPECT_EQ(rdma_bind_addr(id, any.get()), 0) << strerror(errno);
  EXPECT_EQ(rdma_listen(id, 4), 0) << strerror(errno);
  *at = ip("127.0.0.1", ntohs(rdma_get_src_port(id)));
  return SyncIdPtr(id);
}

bool RawPeer::make_queue_pair() {
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  attributes.cap = {.max_send_wr = 64,
                    .max_recv_wr = kReceives,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
  if (rdma_create_qp(id_, nullptr, &attributes) != 0) return false;
  region_ = ibv_reg_mr(id_->pd, memory_.data(), memory_.size(),
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  for (int i = 0; i < kReceives; ++i) {
    ibv_recv_wr request{}, *bad;
    EXPECT_EQ(ibv_post_recv(id_->qp, &request, &bad), 0);
  }
  return region_ != nullptr;
}

rsocket::ConnectData RawPeer::own_data() const {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  return {.big_endian = false,
          .credits = kReceives,
          .iomap_count = 0,
          .buffer_list = {address, region_->rkey, 2},
          .first_buffer = {address + kListBytes, region_->rkey, kBufferBytes}};
}

void RawPeer::read_connect_data(const rdma_cm_event* event) {
  const auto& conn = event->param.conn;
  const auto loaded = rsocket::ConnectData::load(
      {static_cast<const std::byte*>(conn.private_data), conn.private_data_len});
  EXPECT_TRUE(loaded);
  if (loaded) rsocket_data_ = *loaded;
}

std::unique_ptr<RawPeer> RawPeer::connect_valid(
    const Address& to, const std::function<void(rsocket::ConnectData&)>& change,
    uint8_t rnr_retries) {
  std::unique_ptr<RawPeer> peer(new RawPeer);
  Address destination = to;
  EXPECT_EQ(rdma_create_id(nullptr, &peer->id_, nullptr, RDMA_PS_TCP), 0) << strerror(errno);
  EXPECT_EQ(rdma_resolve_addr(peer->id_, nullptr, destination.get(), kTimeoutMs), 0);
  EXPECT_EQ(rdma_resolve_route(peer->id_, kTimeoutMs), 0) << strerror(errno);
  EXPECT_TRUE(peer->make_queue_pair()) << strerror(errno);
  rsocket::ConnectData own = peer->own_data();
  if (change) change(own);
  const std::vector<std::byte> bytes = stored(own);
  rdma_conn_param parameters{};
  parameters.private_data = bytes.data();
  parameters.private_data_len = static_cast<uint8_t>(bytes.size());
  parameters.retry_count = 7;
  parameters.rnr_retry_count = rnr_retries;
  if (rdma_connect(peer->id_, &parameters) != 0) return nullptr;
  peer->read_connect_data(peer->id_->event);
  return peer;
}

std::unique_ptr<RawPeer> RawPeer::accept(rdma_cm_id* listening,
                                         const std::vector<std::byte>& data) {
  std::unique_ptr<RawPeer> peer(new RawPeer);
  EXPECT_EQ(rdma_get_request(listening, &peer->id_), 0) << strerror(errno);
  peer->read_connect_data(peer->id_->event);
  EXPECT_TRUE(peer->make_queue_pair()) << strerror(errno);
  const std::vector<std::byte> bytes = data.empty() ? stored(peer->own_data()) : data;
  rdma_conn_param parameters = peer->id_->event->param.conn;
  parameters.private_data = bytes.data();
  parameters.private_data_len = static_cast<uint8_t>(bytes.size());
  EXPECT_EQ(rdma_accept(peer->id_, &parameters), 0) << strerror(errno);
  return peer;
}

std::unique_ptr<RawPeer> RawPeer::accept_valid(rdma_cm_id* listening) {
  return accept(listening, {});
}

RawPeer::~RawPeer() {
  if (!id_) return;
  if (id_->qp) rdma_destroy_qp(id_);
  if (region_) ibv_dereg_mr(region_);
  rdma_destroy_id(id_);
}

bool RawPeer::post(ibv_send_wr* request) {
  ibv_send_wr* bad;
  if (ibv_post_send(id_->qp, request, &bad) != 0) return false;
  ibv_wc completion;
  if (rdma_get_send_comp(id_, &completion) != 1) return false;
  return completion.status == IBV_WC_SUCCESS;
}

bool RawPeer::send_message(uint32_t immediate, uint64_t address, uint32_t key, uint32_t size,
                           const std::byte* bytes) {
  std::byte* from = memory_.data() + kListBytes + kBufferBytes;
  if (bytes) std::memcpy(from, bytes, size);
  ibv_sge sge{reinterpret_cast<uintptr_t>(from), size, region_->lkey};
  ibv_send_wr request{};
  request.sg_list = &sge;
  request.num_sge = size ? 1 : 0;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htonl(immediate);
  request.wr.rdma = {.remote_addr = address, .rkey = key};
  return post(&request);
}

bool RawPeer::send_without_immediate() {
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  return post(&request);
}

std::optional<rsocket::Message> RawPeer::receive_message() {
  ibv_wc completion;
  if (rdma_get_recv_comp(id_, &completion) != 1 || completion.status != IBV_WC_SUCCESS) {
    return std::nullopt;
  }
  ibv_recv_wr request{}, *bad;
  EXPECT_EQ(ibv_post_recv(id_->qp, &request, &bad), 0);
  EXPECT_TRUE(completion.wc_flags & IBV_WC_WITH_IMM);
  return rsocket::Message::decode(ntohl(completion.imm_data));
}

}  // namespace verbena::test
