// The calls of rdma_cm and verbs that both sides of verbena perf need.
#include "tools/perf/connection.h"

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <cerrno>

namespace verbena::perf {

constexpr int kLookAroundMs = 100;  // while asleep

std::string with_errno(const std::string& what) { return what + ": " + std::strerror(errno); }

Channel open_channel() {
  Channel channel(rdma_create_event_channel());
  if (!channel) throw ToolError(with_errno("there is no RDMA here; rdma_create_event_channel"));
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
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (limit.count() >= 0 && left.count() <= 0) return nullptr;
    pollfd readable{channel->fd, POLLIN, 0};
    poll(&readable, 1, limit.count() < 0 ? -1 : static_cast<int>(left.count()));
  }
}

// Looks at the clock and around once in many turns of a spinning loop.
class Connection::Patience {
 public:
  explicit Patience(const std::function<void()>& look_around) : look_around_(look_around) {}
  void turn() {
    if (++turns_ % 4096 != 0) return;
    look_around_();
    if (Clock::now() - start_ > kPatience)
      throw ToolError("the other side has done nothing for 10 seconds");
  }

 private:
  const std::function<void()>& look_around_;
  Clock::time_point start_ = Clock::now();
  uint32_t turns_ = 0;
};

Connection::Connection(rdma_cm_id* id, std::function<void()> look_around)
    : id_(id), look_around_(std::move(look_around)), memory_(size_t{3} * kMaxMessage) {
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

Hello Connection::greeting() const {
  Hello hello;
  hello.target = reinterpret_cast<uintptr_t>(memory_.data()) + kMaxMessage;
  hello.rkey = mr_->rkey;
  return hello;
}

void Connection::post_receive() {
  ibv_sge room{reinterpret_cast<uintptr_t>(received()), kMaxMessage, mr_->lkey};
  ibv_recv_wr receive{.wr_id = 0, .next = nullptr, .sg_list = &room, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  errno = ibv_post_recv(id_->qp, &receive, &bad);
  if (errno != 0) throw ToolError(with_errno("ibv_post_recv"));
}

void Connection::post(ibv_wr_opcode opcode, uint32_t size, bool signal) {
  Patience patience(look_around_);
  while (under_way_ == kSendDepth) reap(patience);
  const bool read = opcode == IBV_WR_RDMA_READ;
  ibv_sge local{reinterpret_cast<uintptr_t>(read ? received() : outgoing()), size, mr_->lkey};
  ibv_send_wr request{};
  request.wr_id = ++since_signalled_;
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = opcode;
  request.wr.rdma.remote_addr = remote_.target;  // a SEND does not look at these two
  request.wr.rdma.rkey = remote_.rkey;
  if (signal) {
    request.send_flags = IBV_SEND_SIGNALED;
    since_signalled_ = 0;
  }
  ibv_send_wr* bad = nullptr;
  errno = ibv_post_send(id_->qp, &request, &bad);
  if (errno != 0) throw ToolError(with_errno("ibv_post_send"));
  ++under_way_;
}

void Connection::reap(Patience& patience) {
  ibv_wc done[16];
  const int n = ibv_poll_cq(send_cq_.get(), 16, done);
  if (n < 0) throw ToolError("ibv_poll_cq failed");
  for (int i = 0; i < n; ++i) {
    if (done[i].status != IBV_WC_SUCCESS) {
      look_around_();  // which knows better if the other side has gone
      throw ToolError(std::string("a request failed: ") + ibv_wc_status_str(done[i].status));
    }
    under_way_ -= static_cast<uint32_t>(done[i].wr_id);
  }
  if (n == 0) patience.turn();
}

void Connection::drain() {
  Patience patience(look_around_);
  while (under_way_ > 0) reap(patience);
}

bool Connection::take_message() {
  ibv_wc done{};
  const int n = ibv_poll_cq(receive_cq_.get(), 1, &done);
  if (n < 0) throw ToolError("ibv_poll_cq failed");
  if (n == 0) return false;
  if (done.status != IBV_WC_SUCCESS) {
    look_around_();
    throw ToolError(std::string("a receive failed: ") + ibv_wc_status_str(done.status));
  }
  post_receive();
  return true;
}

void Connection::await_message() {
  Patience patience(look_around_);
  while (!take_message()) patience.turn();
}

void Connection::sleep_until_message() {
  for (;;) {
    if (ibv_req_notify_cq(receive_cq_.get(), 0) != 0) throw ToolError("ibv_req_notify_cq failed");
    if (take_message()) return;
    pollfd readable{completions_->fd, POLLIN, 0};
    while (poll(&readable, 1, kLookAroundMs) <= 0) look_around_();
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(completions_.get(), &cq, &context) != 0)
      throw ToolError(with_errno("ibv_get_cq_event"));
    ibv_ack_cq_events(cq, 1);
  }
}

void Connection::await_mark(uint32_t size, uint8_t value) {
  Patience patience(look_around_);
  std::atomic_ref<uint8_t> last(*reinterpret_cast<uint8_t*>(target() + size - 1));
  while (last.load(std::memory_order_acquire) != value) patience.turn();
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
