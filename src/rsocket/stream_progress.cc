// StreamSocket: handles completions and sends the messages that they make due. All functions
// require the lock.
#include <array>
#include <cerrno>

#include "base/vendor_error.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

namespace {

// Limits one call, so that it returns even if the peer sends continuously.
constexpr int kMaxBatches = 64;

// The errno for a failed work request.
int error_of(const ibv_wc& failed) {
  switch (failed.status) {
    case IBV_WC_RETRY_EXC_ERR:  // a killed process resets its connections, as in TCP
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
  if (awaited() & ~before) wake_waiters();
}

// All conditions that a thread may wait for and that completions change, one bit each. They include
// more than poll() reports.
unsigned StreamSocket::awaited() const {
  const SendWindow& window = endpoint_->window();
  return static_cast<uint16_t>(readiness()) | unsigned{window.can_write()} << 16 |
         unsigned{window.can_send()} << 17 | unsigned{last_message_acked()} << 18;
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
      probe_in_flight_ = false;
      return window.on_control_completion();
    case Work::kLastMessage:
      window.on_control_completion();
      --last_messages_in_flight_;
      return end_if_both_closed();
  }
}

void StreamSocket::on_message(const ibv_wc& completion) {
  bool is_valid = (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
  const Message message = Message::decode(is_valid ? ntohl(completion.imm_data) : 0);
  switch (message.op) {
    case Op::kData:
      is_valid = is_valid && peer_open_ && endpoint_->ring().on_data(message.value);
      break;
    case Op::kCredits:
      is_valid = endpoint_->window().on_credit_limit(static_cast<uint16_t>(message.value)) &&
                 endpoint_->take_buffers();
      break;
    case Op::kIomap:  // the peer has already written the entry
      break;
    case Op::kControl:
      return on_control(static_cast<Control>(message.value));
    default:
      is_valid = false;
  }
  if (is_valid) return;
  // The peer violates the protocol, so no later byte can be trusted.
  end(EPROTO);
  rdma_disconnect(id_);
}

void StreamSocket::on_control(Control control) {
  if (control == Control::kDisconnect) return end(0);
  if (control != Control::kShutdown) return;
  peer_open_ = false;
  end_if_both_closed();
}

// Ends the connection if both sides have sent their last message and the peer has acknowledged
// ours.
void StreamSocket::end_if_both_closed() {
  if (!last_message_ || !last_message_acked()) return;
  if (last_message_ == Control::kDisconnect || !peer_open_) end(0);
}

void StreamSocket::send_pending() {
  SendWindow& window = endpoint_->window();
  if (last_message_pending_ && window.control_free()) {
    last_message_pending_ = false;
    ++last_messages_in_flight_;
    post_failed(endpoint_->post_control({Op::kControl, static_cast<uint32_t>(*last_message_)},
                                        Work::kLastMessage));
  }
  if (endpoint_->ring().update_due() && window.control_free())
    post_failed(endpoint_->post_update());
}

void StreamSocket::post_failed(int error) {
  // The queue pair is already in the error state; its completions would report the same.
  if (error) end(ECONNRESET);
}

}  // namespace verbena::rsocket
