// DatagramEndpoint: see datagram_endpoint.h.
#include "rsocket/datagram_endpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace verbena::rsocket {

namespace {

constexpr uint32_t kRouteHeader = sizeof(ibv_grh);  // precedes each datagram that a UD QP receives
constexpr uint32_t kReceiveSlot = kRouteHeader + DatagramEndpoint::kMaxMessage;
constexpr uint32_t kMinSlots = 16;
constexpr uint32_t kMaxBatches = 64;
constexpr uint8_t kHopLimit = 64;
constexpr uint64_t kIsReceive = uint64_t{1} << 32;  // flag in work request IDs, above the slot

uint32_t slots_for(uint32_t bytes, uint32_t slots) {
  return std::max(kMinSlots, std::min(slots, bytes / DatagramEndpoint::kMaxMessage));
}

}  // namespace

Result<std::unique_ptr<DatagramEndpoint>> DatagramEndpoint::create(rdma_event_channel* channel,
                                                                   const SocketAddress& local,
                                                                   const Sizes& sizes) {
  std::unique_ptr<DatagramEndpoint> endpoint(new DatagramEndpoint(local));
  if (const Status built = endpoint->build(channel, sizes); !built.ok()) return built.error();
  return endpoint;
}

Status DatagramEndpoint::build(rdma_event_channel* channel, const Sizes& sizes) {
  if (rdma_create_id(channel, &id_, nullptr, RDMA_PS_UDP) != 0) return Error{errno};
  // The address selects the device. The port belongs to the UDP socket; the connection manager does
  // not use it.
  SocketAddress device_of = local();
  device_of.set_port(0);
  if (rdma_bind_addr(id_, device_of.get()) != 0) return Error{errno};
  // rdma_bind_addr selects no device for a loopback address; rdma_resolve_addr does.
  if (!id_->verbs && rdma_resolve_addr(id_, nullptr, device_of.get(), 0) != 0) return Error{errno};
  if (!id_->verbs) return Error{ENODEV};

  Sizes possible = sizes;
  ibv_device_attr device;
  if (const int error = ibv_query_device(id_->verbs, &device)) return Error{error};
  possible.limit_slots(device.max_qp_wr);
  receive_slots_ = slots_for(possible.receive_bytes, possible.receive_slots);
  send_slots_ = slots_for(possible.send_bytes, possible.send_slots);
  ibv_port_attr port;
  if (const int error = ibv_query_port(id_->verbs, id_->port_num, &port)) return Error{error};
  max_message_ = std::min(kMaxMessage, 128u << port.active_mtu);

  auto completions =
      CompletionSource::create(id_->verbs, static_cast<int>(receive_slots_ + send_slots_));
  if (!completions.ok()) return completions.error();
  completions_ = std::move(completions.value());

  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_->queue();
  attributes.qp_type = IBV_QPT_UD;
  attributes.sq_sig_all = 1;
  attributes.cap = {.max_send_wr = send_slots_,
                    .max_recv_wr = receive_slots_,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
  if (rdma_create_qp(id_, nullptr, &attributes) != 0) return Error{errno};
  has_queue_pair_ = true;

  auto memory =
      Pages::allocate(size_t{receive_slots_} * kReceiveSlot + size_t{send_slots_} * kMaxMessage);
  if (!memory.ok()) return memory.error();
  memory_ = std::move(memory.value());
  region_ = ibv_reg_mr(id_->pd, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE);
  if (!region_) return Error{errno};
  for (uint32_t slot = 0; slot < receive_slots_; ++slot) release_slot(slot);
  if (broken_) return Error{EIO};
  return {};
}

DatagramEndpoint::~DatagramEndpoint() {
  if (has_queue_pair_) rdma_destroy_qp(id_);
  if (region_) ibv_dereg_mr(region_);
  completions_.reset();
  if (id_) rdma_destroy_id(id_);
}

void DatagramEndpoint::release_slot(uint32_t slot) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(memory_.data()) + uint64_t{slot} * kReceiveSlot,
              kReceiveSlot, region_->lkey};
  ibv_recv_wr request{.wr_id = kIsReceive | slot, .next = nullptr, .sg_list = &sge, .num_sge = 1};
  ibv_recv_wr* bad;
  if (ibv_post_recv(id_->qp, &request, &bad) != 0) broken_ = true;
}

int DatagramEndpoint::send(ibv_ah* to, uint32_t qpn, Buffers& from) {
  const auto length = static_cast<uint32_t>(header_.size() + from.left());
  std::byte* place = memory_.data() + size_t{receive_slots_} * kReceiveSlot +
                     size_t{next_send_slot_} * kMaxMessage;
  header_.store(place);
  from.copy_out(place + header_.size(), from.left());
  ibv_sge sge{reinterpret_cast<uintptr_t>(place), length, region_->lkey};
  ibv_send_wr request{};
  request.wr_id = next_send_slot_;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.wr.ud = {.ah = to, .remote_qpn = qpn, .remote_qkey = RDMA_UDP_QKEY};
  ibv_send_wr* bad;
  if (const int error = ibv_post_send(id_->qp, &request, &bad)) return error;
  next_send_slot_ = (next_send_slot_ + 1) % send_slots_;
  ++sends_in_flight_;
  return 0;
}

void DatagramEndpoint::take(std::vector<ReceivedDatagram>* received) {
  std::array<ibv_wc, 16> completions;
  for (uint32_t batch = 0; batch < kMaxBatches; ++batch) {
    const int count = completions_->take(completions);
    if (count < 0) broken_ = true;
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = completions[static_cast<size_t>(i)];
      if (completion.wr_id & kIsReceive) {
        on_receive(completion, received);
      } else {
        --sends_in_flight_;
        if (completion.status != IBV_WC_SUCCESS) broken_ = true;
      }
    }
    if (count < static_cast<int>(completions.size())) return;
  }
}

void DatagramEndpoint::on_receive(const ibv_wc& completion,
                                  std::vector<ReceivedDatagram>* received) {
  const auto slot = static_cast<uint32_t>(completion.wr_id);
  if (completion.status != IBV_WC_SUCCESS) {
    broken_ = true;
    return;
  }
  if (completion.byte_len < kRouteHeader || completion.byte_len > kReceiveSlot) {
    return release_slot(slot);
  }
  const std::span<const std::byte> message(
      memory_.data() + size_t{slot} * kReceiveSlot + kRouteHeader,
      completion.byte_len - kRouteHeader);
  const auto header = DatagramHeader::load(message);
  if (!header) return release_slot(slot);
  received->push_back({slot, header->source, message.subspan(header->size())});
}

ibv_ah* make_address_handle(ibv_pd* protection_domain, const rdma_cm_id* resolved) {
  if (resolved->route.num_paths < 1) {
    errno = EHOSTUNREACH;
    return nullptr;
  }
  const ibv_sa_path_rec& path = resolved->route.path_rec[0];
  ibv_context* device = protection_domain->context;
  ibv_port_attr port;
  if (const int error = ibv_query_port(device, resolved->port_num, &port)) {
    errno = error;
    return nullptr;
  }
  const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  ibv_ah_attr attributes{};
  attributes.port_num = resolved->port_num;
  attributes.sl = path.sl;
  if (!ethernet) {
    attributes.dlid = ntohs(path.dlid);
    attributes.src_path_bits = static_cast<uint8_t>(ntohs(path.slid) & ((1 << port.lmc) - 1));
    attributes.static_rate = path.rate;
  }
  if (ethernet || path.hop_limit > 1) {
    attributes.is_global = 1;
    attributes.grh.dgid = path.dgid;
    attributes.grh.flow_label = ntohl(path.flow_label);
    attributes.grh.hop_limit = path.hop_limit > 1 ? path.hop_limit : kHopLimit;
    attributes.grh.traffic_class = path.traffic_class;
    for (int index = 0; index < port.gid_tbl_len; ++index) {
      ibv_gid_entry entry;
      if (ibv_query_gid_ex(device, resolved->port_num, static_cast<uint32_t>(index), &entry, 0)) {
        continue;
      }
      if (std::memcmp(&entry.gid, &path.sgid, sizeof entry.gid) != 0) continue;
      attributes.grh.sgid_index = static_cast<uint8_t>(index);
      if (entry.gid_type != IBV_GID_TYPE_ROCE_V1) break;  // the same GID may follow as RoCE v2
    }
  }
  return ibv_create_ah(protection_domain, &attributes);
}

}  // namespace verbena::rsocket
