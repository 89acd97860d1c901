// The rdma_cm and verbs calls that client and server of verbena perf share.
#include "tools/perf/connection.h"

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <cerrno>

namespace verbena::perf {

constexpr int kEventCheckMs = 100;  // while sleeping

std::string with_errno(const std::string& what) { return what + ": " + std::strerror(errno); }

Channel open_channel() {
  Channel channel(rdma_create_event_channel());
  if (!channel) throw ToolError(with_errno("RDMA is not available; rdma_create_event_channel"));
  const int flags = fcntl(channel->fd, F_GETFL);
  if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0)
    throw ToolError(with_errno("fcntl"));
  return channel;
}

Event next_event(const Channel& channel, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  for (;;) {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(channel.get(), &event) == 0) return Event(event);
    if (errno != EAGAIN && errno != EINTR) throw ToolError(with_errno("rdma_get_cm_event"));
    const auto remaining =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (limit.count() >= 0 && remaining.count() <= 0) return nullptr;
    pollfd readable{channel->fd, POLLIN, 0};
    poll(&readable, 1, limit.count() < 0 ? -1 : static_cast<int>(remaining.count()));
  }
}

// Checks the time and the connection events once per 4096 iterations of a polling loop.
class Connection::WaitGuard {
 public:
  explicit WaitGuard(const std::function<void()>& check_events) : check_events_(check_events) {}
  void check() {
    if (++turns_ % 4096 != 0) return;
    check_events_();
    if (Clock::now() - start_ > kPeerTimeout)
      throw ToolError("the other side has made no progress for 10 seconds");
  }

 private:
  const std::function<void()>& check_events_;
  Clock::time_point start_ = Clock::now();
  uint32_t turns_ = 0;
};

Connection::Connection(rdma_cm_id* id, std::function<void()> check_events)
    : id_(id), check_events_(std::move(check_events)), memory_(size_t{3} * kMaxMessage) {
  completions_.reset(ibv_create_comp_channel(id->verbs));
  send_cq_.reset(ibv_create_cq(id->verbs, kSendDepth, nullptr, nullptr, 0));
  receive_cq_.reset(ibv_create_cq(id->verbs, kReceiveDepth, nullptr, completions_.get(), 0));
  if (!completions_ || !send_cq_ || !receive_cq_) throw ToolError(with_errno("ibv_create_cq"));
  ibv_qp_init_attr wanted{};
  wanted.send_cq = send_cq_.get();
  wanted.recv_cq = receive_cq_.get();
  wanted.cap = {.max_send_wr = kSendDepth,
                .max_recv_wr = kReceiveDepth,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
  wanted.qp_type = IBV_QPT_RC;
  if (rdma_create_qp(id, nullptr, &wanted) != 0) throw ToolError(with_errno("rdma_create_qp"));
  queue_pair_.reset(id);
  mr_.reset(ibv_reg_mr(id->qp->pd, memory_.data(), memory_.size(),
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
  if (!mr_) throw ToolError(with_errno("ibv_reg_mr (see `ulimit -l`)"));
  for (uint32_t i = 0; i < kReceiveDepth; ++i) post_receive();
}

Handshake Connection::local_handshake() const {
  Handshake handshake;
  handshake.target = reinterpret_cast<uintptr_t>(memory_.data()) + kMaxMessage;
  handshake.rkey = mr_->rkey;
  return handshake;
}

void Connection::post_receive() {
  ibv_sge buffer{reinterpret_cast<uintptr_t>(received()), kMaxMessage, mr_->lkey};
  ibv_recv_wr receive{.wr_id = 0, .next = nullptr, .sg_list = &buffer, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  errno = ibv_post_recv(id_->qp, &receive, &bad);
  if (errno != 0) throw ToolError(with_errno("ibv_post_recv"));
}

void Connection::post(ibv_wr_opcode opcode, uint32_t size, bool signal) {
  WaitGuard guard(check_events_);
  while (in_flight_ == kSendDepth) poll_sends(guard);
  const bool read = opcode == IBV_WR_RDMA_READ;
  ibv_sge local{reinterpret_cast<uintptr_t>(read ? received() : outgoing()), size, mr_->lkey};
  ibv_send_wr request{};
  request.wr_id = ++since_signalled_;
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = opcode;
  request.wr.rdma.remote_addr = remote_.target;  // a SEND ignores this and the rkey
  request.wr.rdma.rkey = remote_.rkey;
  if (signal) {
    request.send_flags = IBV_SEND_SIGNALED;
    since_signalled_ = 0;
  }
  ibv_send_wr* bad = nullptr;
  errno = ibv_post_send(id_->qp, &request, &bad);
  if (errno != 0) throw ToolError(with_errno("ibv_post_send"));
  ++in_flight_;
}

void Connection::poll_sends(WaitGuard& guard) {
  ibv_wc done[16];
  const int n = ibv_poll_cq(send_cq_.get(), 16, done);
  if (n < 0) throw ToolError("ibv_poll_cq failed");
  for (int i = 0; i < n; ++i) {
    if (done[i].status != IBV_WC_SUCCESS) {
      check_events_();  // throws a better error if the other side has disconnected
      throw ToolError(std::string("a request failed: ") + ibv_wc_status_str(done[i].status));
    }
    in_flight_ -= static_cast<uint32_t>(done[i].wr_id);
  }
  if (n == 0) guard.check();
}

void Connection::drain() {
  WaitGuard guard(check_events_);
  while (in_flight_ > 0) poll_sends(guard);
}

bool Connection::poll_message() {
  ibv_wc done{};
  const int n = ibv_poll_cq(receive_cq_.get(), 1, &done);
  if (n < 0) throw ToolError("ibv_poll_cq failed");
  if (n == 0) return false;
  if (done.status != IBV_WC_SUCCESS) {
    check_events_();
    throw ToolError(std::string("a receive failed: ") + ibv_wc_status_str(done.status));
  }
  post_receive();
  return true;
}

void Connection::await_message() {
  WaitGuard guard(check_events_);
  while (!poll_message()) guard.check();
}

void Connection::sleep_until_message() {
  for (;;) {
    if (ibv_req_notify_cq(receive_cq_.get(), 0) != 0) throw ToolError("ibv_req_notify_cq failed");
    if (poll_message()) return;
    pollfd readable{completions_->fd, POLLIN, 0};
    while (poll(&readable, 1, kEventCheckMs) <= 0) check_events_();
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(completions_.get(), &cq, &context) != 0)
      throw ToolError(with_errno("ibv_get_cq_event"));
    ibv_ack_cq_events(cq, 1);
  }
}

void Connection::await_byte(uint32_t size, uint8_t value) {
  WaitGuard guard(check_events_);
  std::atomic_ref<uint8_t> last(*reinterpret_cast<uint8_t*>(target() + size - 1));
  while (last.load(std::memory_order_acquire) != value) guard.check();
}

void Connection::send_command(const Command& command) {
  const Command raw = command.swapped();
  std::memcpy(outgoing(), &raw, sizeof raw);
  post(IBV_WR_SEND, sizeof raw, true);
  drain();
}

Command Connection::received_command() {
  Command raw;
  std::memcpy(&raw, received(), sizeof raw);
  return raw.swapped();
}

}  // namespace verbena::perf
