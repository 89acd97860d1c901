// StreamEndpoint: see stream_endpoint.h.
#include "rsocket/stream_endpoint.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace verbena::rsocket {

namespace {

constexpr uint32_t kListEntries = 2;
constexpr size_t kCacheLine = 64;
// Receives beyond the peer's credits, for messages that use none: credit updates, last messages and
// iomaps. Even if the application makes no calls, a peer that respects its credits sends fewer of
// these.
constexpr uint16_t kReceiveReserve = 2 * SendWindow::kControlSlots;
// RNR timer code: the peer retransmits after 0.64 ms. The default is a thousand times longer.
constexpr uint8_t kNoReceiveTimer = 12;
constexpr size_t kMaxInlined = 256;  // the queue pair inlines at most this many gathered bytes

size_t aligned(size_t size) { return (size + kCacheLine - 1) / kCacheLine * kCacheLine; }
uint64_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

Result<std::unique_ptr<StreamEndpoint>> StreamEndpoint::create(rdma_cm_id* id, Sizes sizes) {
  if (!id->verbs) return Error{ENODEV};
  // Other transports have no immediate data.
  if (id->verbs->device->transport_type != IBV_TRANSPORT_IB) return Error{EOPNOTSUPP};
  ibv_device_attr device;
  if (const int error = ibv_query_device(id->verbs, &device)) return Error{error};
  sizes.limit_slots(device.max_qp_wr - kReceiveReserve);
  sizes.inline_bytes = std::min<uint16_t>(sizes.inline_bytes, kMaxInlined);

  std::unique_ptr<StreamEndpoint> endpoint(new StreamEndpoint(id, sizes));
  if (const Status built = endpoint->build(); !built.ok()) return built.error();
  return endpoint;
}

StreamEndpoint::StreamEndpoint(rdma_cm_id* id, const Sizes& sizes)
    : id_(id),
      sizes_(sizes),
      window_(sizes.send_slots, sizes.send_bytes, sizes.inline_bytes),
      ring_(sizes.receive_bytes / 2, sizes.receive_slots) {}

Status StreamEndpoint::build() {
  const uint32_t receives = uint32_t{sizes_.receive_slots} + kReceiveReserve;
  auto completions =
      CompletionSource::create(id_->verbs, static_cast<int>(sizes_.send_slots + receives));
  if (!completions.ok()) return completions.error();
  completions_ = std::move(completions.value());

  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_->queue();
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {.max_send_wr = sizes_.send_slots,
                    .max_recv_wr = receives,
                    .max_send_sge = 2,
                    .max_recv_sge = 1,
                    .max_inline_data = sizes_.inline_bytes};
  if (rdma_create_qp(id_, nullptr, &attributes) != 0) return Error{errno};
  has_queue_pair_ = true;

  const size_t list_bytes =
      aligned(kListEntries * RemoteBuffer::kSize + size_t{sizes_.iomap_count} * IomapEntry::kSize);
  auto shared = Pages::allocate(list_bytes + sizes_.receive_bytes);
  if (!shared.ok()) return shared.error();
  shared_ = std::move(shared.value());
  buffer_list_ = shared_.data();
  iomaps_ = buffer_list_ + kListEntries * RemoteBuffer::kSize;
  receive_data_ = shared_.data() + list_bytes;

  auto own =
      Pages::allocate(sizes_.send_bytes + SendWindow::kControlSlots * size_t{RemoteBuffer::kSize});
  if (!own.ok()) return own.error();
  private_ = std::move(own.value());

  shared_region_ = ibv_reg_mr(id_->pd, shared_.data(), shared_.size(),
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (!shared_region_) return Error{errno};
  private_region_ = ibv_reg_mr(id_->pd, private_.data(), private_.size(), IBV_ACCESS_LOCAL_WRITE);
  if (!private_region_) return Error{errno};

  if (const int error = post_receives(receives)) return Error{error};
  return {};
}

StreamEndpoint::~StreamEndpoint() {
  if (has_queue_pair_) rdma_destroy_qp(id_);
  if (shared_region_) ibv_dereg_mr(shared_region_);
  if (private_region_) ibv_dereg_mr(private_region_);
}

ConnectData StreamEndpoint::connect_data() const {
  return {.big_endian = false,
          .credits = sizes_.receive_slots,
          .iomap_count = sizes_.iomap_count,
          .buffer_list = {address_of(buffer_list_), shared_region_->rkey, kListEntries},
          .first_buffer = {address_of(receive_data_), shared_region_->rkey, ring_.half_bytes()}};
}

void StreamEndpoint::connected(const ConnectData& peer) {
  peer_ = peer;
  next_peer_entry_ = 1 % peer.buffer_list.length;
  window_.connected(peer.credits, peer.first_buffer);
}

void StreamEndpoint::established() {
  ibv_qp_attr attributes{};
  attributes.min_rnr_timer = kNoReceiveTimer;
  (void)ibv_modify_qp(id_->qp, &attributes, IBV_QP_MIN_RNR_TIMER);  // a failure costs only time
}

int StreamEndpoint::post_receives(unsigned count) {
  // A message needs a receive, but no memory.
  std::array<ibv_recv_wr, 32> requests;
  while (count > 0) {
    const unsigned batch = std::min<unsigned>(count, requests.size());
    for (unsigned i = 0; i < batch; ++i) {
      requests[i] = {.wr_id = work_id(Work::kReceive),
                     .next = i + 1 < batch ? &requests[i + 1] : nullptr,
                     .sg_list = nullptr,
                     .num_sge = 0};
    }
    ibv_recv_wr* bad;
    if (const int error = ibv_post_recv(id_->qp, requests.data(), &bad)) return error;
    count -= batch;
  }
  return 0;
}

bool StreamEndpoint::take_buffers() {
  for (uint32_t looked = 0; looked < kListEntries; ++looked) {
    std::byte* entry = buffer_list_ + size_t{next_list_entry_} * RemoteBuffer::kSize;
    // The peer writes the last word (key and length) last and atomically, so it is read first and
    // atomically.
    constexpr size_t kLast = RemoteBuffer::kSize - sizeof(uint64_t);
    const std::atomic_ref last(*reinterpret_cast<uint64_t*>(entry + kLast));
    const uint64_t word = last.load(std::memory_order_acquire);
    std::array<std::byte, RemoteBuffer::kSize> copy{};
    std::memcpy(copy.data() + kLast, &word, sizeof word);
    if (RemoteBuffer::load(copy.data()).length == 0) return true;
    std::memcpy(copy.data(), entry, kLast);
    if (!window_.on_buffer(RemoteBuffer::load(copy.data()))) return false;
    last.store(0, std::memory_order_release);
    next_list_entry_ = (next_list_entry_ + 1) % kListEntries;
  }
  return true;
}

int StreamEndpoint::post(ibv_send_wr* request) {
  ibv_send_wr* bad;
  return ibv_post_send(id_->qp, request, &bad);
}

int StreamEndpoint::post_write(const SendWindow::Write& write, Buffers& from,
                               const Message* message) {
  std::array<std::byte, kMaxInlined> gathered;
  std::array<ibv_sge, 2> sges;
  int count = 1;
  if (write.inlined) {
    const void* data = from.contiguous(write.length);
    if (data) {
      from.advance(write.length);
    } else {
      from.copy_out(gathered.data(), write.length);
      data = gathered.data();
    }
    sges[0] = {address_of(data), write.length, 0};
  } else {
    const uint32_t first = std::min(write.length, sizes_.send_bytes - write.ring_offset);
    std::byte* place = private_.data() + write.ring_offset;
    from.copy_out(place, first);
    sges[0] = {address_of(place), first, private_region_->lkey};
    if (first < write.length) {
      from.copy_out(private_.data(), write.length - first);
      sges[1] = {address_of(private_.data()), write.length - first, private_region_->lkey};
      count = 2;
    }
  }
  ibv_send_wr request{};
  request.wr_id = work_id(Work::kWrite) | write.completion_id;
  request.sg_list = sges.data();
  request.num_sge = count;
  request.opcode = message ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  if (write.completion_id) request.send_flags |= IBV_SEND_SIGNALED;
  if (write.inlined) request.send_flags |= IBV_SEND_INLINE;
  if (message) request.imm_data = htonl(message->encode());
  request.wr.rdma = {.remote_addr = write.remote_address, .rkey = write.remote_key};
  return post(&request);
}

int StreamEndpoint::post_control(Message message, Work work) {
  window_.take_control();
  ibv_send_wr request{};
  request.wr_id = work_id(work);
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = htonl(message.encode());
  return post(&request);
}

int StreamEndpoint::post_update() {
  const Message message{Op::kCredits, ring_.credit_limit()};
  if (!ring_.half_free()) return post_control(message, Work::kControl);

  const uint32_t place = window_.take_control();
  const RemoteBuffer half{address_of(receive_data_ + ring_.announce_half()), shared_region_->rkey,
                          ring_.half_bytes()};
  std::byte* entry =
      private_.data() + sizes_.send_bytes + size_t{place} * size_t{RemoteBuffer::kSize};
  half.store(entry, peer_.big_endian);

  ibv_sge sge{address_of(entry), RemoteBuffer::kSize, private_region_->lkey};
  ibv_send_wr request{};
  request.wr_id = work_id(Work::kControl);
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  if (sizes_.inline_bytes >= RemoteBuffer::kSize) request.send_flags |= IBV_SEND_INLINE;
  request.imm_data = htonl(message.encode());
  request.wr.rdma = {.remote_addr = peer_.buffer_entry(next_peer_entry_),
                     .rkey = peer_.buffer_list.key};
  next_peer_entry_ = (next_peer_entry_ + 1) % peer_.buffer_list.length;
  return post(&request);
}

int StreamEndpoint::post_probe() {
  window_.take_control();
  ibv_send_wr request{};
  request.wr_id = work_id(Work::kProbe);
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  return post(&request);
}

}  // namespace verbena::rsocket
