// StreamSocket: what completions mean, and what becomes due because of them. All with the lock
// held.
#include <array>
#include <cerrno>

#include "base/vendor_error.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

namespace {

// A peer that never stops sending must not keep a caller here.
constexpr int kMaxBatches = 64;

// What the application is told when a work request failed.
int error_of(const ibv_wc& failed) {
  switch (failed.status) {
    case IBV_WC_RETRY_EXC_ERR:  // a process that was killed resets its connections, as with TCP
      return failed.vendor_err == kVendorPeerEnded ? ECONNRESET : ETIMEDOUT;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return ETIMEDOUT;
    default:
      return ECONNRESET;
  }
}

}  // namespace

void StreamSocket::progress() {
  if (!was_connected_) return;
  const unsigned before = awaited();
  std::array<ibv_wc, 16> completions;
  unsigned received = 0;
  for (int batch = 0; batch < kMaxBatches; ++batch) {
    const int count = endpoint_->completions().take(completions);
    if (count < 0) end(EIO);
    for (int i = 0; i < count; ++i) on_completion(completions[static_cast<size_t>(i)], &received);
    if (count < static_cast<int>(completions.size())) break;
  }
  if (state_ == State::kConnected) {
    if (received > 0) post_failed(endpoint_->post_receives(received));
    send_pending();
  }
  if (awaited() & ~before) ring_waiters();
}

// All that a thread may wait for and completions bring about, a bit each: more than poll() tells.
unsigned StreamSocket::awaited() const {
  const SendWindow& window = endpoint_->window();
  return static_cast<uint16_t>(readiness()) | unsigned{window.can_write()} << 16 |
         unsigned{window.can_send()} << 17 | unsigned{goodbye_heard()} << 18;
}

void StreamSocket::on_completion(const ibv_wc& completion, unsigned* received) {
  active_ |= work_of(completion.wr_id) != Work::kProbe;
  if (completion.status != IBV_WC_SUCCESS) {
    if (state_ == State::kConnected) end(error_of(completion));
    return;
  }
  SendWindow& window = endpoint_->window();
  switch (work_of(completion.wr_id)) {
    case Work::kReceive:
      ++*received;
      if (state_ == State::kConnected) on_message(completion);
      return;
    case Work::kWrite:
      return window.on_completion(completion.wr_id);
    case Work::kControl:
      return window.on_control_completion();
    case Work::kProbe:
      probing_ = false;
      return window.on_control_completion();
    case Work::kGoodbye:
      window.on_control_completion();
      --goodbyes_in_flight_;
      return end_if_all_is_said();
  }
}

void StreamSocket::on_message(const ibv_wc& completion) {
  bool sensible = (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
  const Message message = Message::decode(sensible ? ntohl(completion.imm_data) : 0);
  switch (message.op) {
    case Op::kData:
      sensible = sensible && peer_open_ && endpoint_->ring().on_data(message.value);
      break;
    case Op::kCredits:
      sensible = endpoint_->window().on_credit_limit(static_cast<uint16_t>(message.value)) &&
                 endpoint_->take_buffers();
      break;
    case Op::kIomap:  // the entry is there; nobody waits for it
      break;
    case Op::kControl:
      return on_control(static_cast<Control>(message.value));
    default:
      sensible = false;
  }
  if (sensible) return;
  // It writes where it likes, or we do not understand each other: no byte after this can be
  // trusted.
  end(EPROTO);
  rdma_disconnect(id_);
}

void StreamSocket::on_control(Control control) {
  if (control == Control::kDisconnect) return end(0);
  if (control != Control::kShutdown) return;
  peer_open_ = false;
  end_if_all_is_said();
}

// Both have said their last word, and the peer has heard ours.
void StreamSocket::end_if_all_is_said() {
  if (!said_ || !goodbye_heard()) return;
  if (said_ == Control::kDisconnect || !peer_open_) end(0);
}

void StreamSocket::send_pending() {
  SendWindow& window = endpoint_->window();
  if (goodbye_pending_ && window.control_free()) {
    goodbye_pending_ = false;
    ++goodbyes_in_flight_;
    post_failed(
        endpoint_->post_control({Op::kControl, static_cast<uint32_t>(*said_)}, Work::kGoodbye));
  }
  if (endpoint_->ring().news_due() && window.control_free()) post_failed(endpoint_->post_news());
}

void StreamSocket::post_failed(int error) {
  // The queue pair is in its error state already; the completions to come would say the same.
  if (error) end(ECONNRESET);
}

}  // namespace verbena::rsocket
