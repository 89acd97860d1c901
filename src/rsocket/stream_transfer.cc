// StreamSocket: sending and receiving.
#include <algorithm>
#include <array>
#include <cerrno>

#include "rsocket/stream_socket.h"

namespace verbena::rsocket {

// The result of a call that moved `done` bytes before `status` stopped it. It reports an error of
// the connection once.
Result<size_t> StreamSocket::outcome(size_t done, const Status& status) {
  if (done > 0 || status.ok()) return done;
  if (status.error().code == error_) error_ = 0;
  if (status.error().code == ECONNRESET) reset_reported_ = true;
  return status.error();
}

Status StreamSocket::may_send() const {
  if (closed_) return Error{EBADF};
  if (error_) return Error{error_};
  if (!was_connected_) return Error{ENOTCONN};
  if (!write_open_) return Error{EPIPE};
  if (state_ != State::kConnected) return Error{reset_reported_ ? EPIPE : ECONNRESET};
  return {};
}

// Requires `direction_lock` and `lock`, and returns with both held. Waits until at least one write
// is possible.
Status StreamSocket::wait_to_write(Lock& direction_lock, Lock& lock, int flags, Instant deadline,
                                   bool with_credit) {
  const auto possible = [&] {
    if (closed_ || state_ != State::kConnected || !write_open_) return true;
    const SendWindow& window = endpoint_->window();
    return with_credit ? window.can_send() : window.can_write();
  };
  if (connecting()) {
    if (nonblocking(flags)) return Error{EAGAIN};
    direction_lock.unlock();
    const Status connected = wait_connected(lock, deadline);
    lock.unlock();
    direction_lock.lock();
    lock.lock();
    if (!connected.ok()) return connected;
  }
  while (!possible()) {
    progress();
    if (possible()) break;
    if (nonblocking(flags)) return Error{EAGAIN};
    direction_lock.unlock();
    const Status waited = wait(lock, deadline, possible);
    lock.unlock();
    direction_lock.lock();
    lock.lock();
    if (!waited.ok()) return waited;
  }
  return may_send();
}

Result<size_t> StreamSocket::send(Buffers& from, const Transfer& transfer) {
  if (transfer.destination) return Error{EISCONN};
  if (transfer.flags & MSG_OOB) return Error{EOPNOTSUPP};
  Lock direction_lock(send_mutex_);
  Lock lock(lock_);
  const Instant deadline = send_deadline();
  const size_t total = from.left();
  Status status = total == 0 ? may_send() : Status{};
  if (iomaps_ && iomaps_->has_updates()) {
    status = announce_iomaps(direction_lock, lock, transfer.flags, deadline);
  }
  while (status.ok() && from.left() > 0) {
    status = wait_to_write(direction_lock, lock, transfer.flags, deadline, true);
    if (!status.ok()) break;
    const SendWindow::Write write = endpoint_->window().take_data(from.left());
    lock.unlock();
    const Message message{Op::kData, write.length};
    const int error = endpoint_->post_write(write, from, &message);
    lock.lock();
    post_failed(error);
  }
  return outcome(total - from.left(), status);
}

// The peer receives iomap entries before the bytes that are sent after them.
Status StreamSocket::announce_iomaps(Lock& direction_lock, Lock& lock, int flags,
                                     Instant deadline) {
  while (iomaps_->has_updates()) {
    const Status ready = wait_to_write(direction_lock, lock, flags, deadline, true);
    if (!ready.ok()) return ready;
    if (!iomaps_->has_updates()) break;  // another sender sent it during the wait
    const Iomaps::Update update = iomaps_->take_update();
    std::array<std::byte, IomapEntry::kSize> entry;
    update.entry.store(entry.data(), endpoint_->peer().big_endian);
    const iovec area{entry.data(), entry.size()};
    Buffers from = Buffers::from(&area, 1).value();
    const SendWindow::Write write =
        endpoint_->window().take_direct(entry.size(), endpoint_->peer().iomap_entry(update.index),
                                        endpoint_->peer().buffer_list.key);
    const Message message{Op::kIomap, update.index};
    post_failed(endpoint_->post_write(write, from, &message));
  }
  return {};
}

// Requires receive_mutex_. Releases the lock while bytes are copied.
uint64_t StreamSocket::copy_to(Buffers& to, Lock& lock, bool peek) {
  ReceiveRing& ring = endpoint_->ring();
  uint64_t copied = 0;
  while (to.left() > 0) {
    const uint64_t skip = peek ? copied : 0;
    if (ring.readable() == skip) break;
    const ReceiveRing::Range range = ring.range(skip);
    const uint64_t size = std::min<uint64_t>(range.length, to.left());
    lock.unlock();
    to.copy_in(endpoint_->ring_data() + range.offset, size);
    lock.lock();
    if (!peek) ring.consume(size);
    copied += size;
  }
  return copied;
}

Result<size_t> StreamSocket::receive(Buffers& to, Transfer& transfer) {
  if (transfer.flags & MSG_OOB) return Error{EINVAL};
  Lock direction_lock(receive_mutex_);
  Lock lock(lock_);
  const Instant deadline = receive_deadline();
  const size_t total = to.left();
  const bool peek = transfer.flags & MSG_PEEK;
  if (!was_connected_) {
    if (connecting() && nonblocking(transfer.flags)) return Error{EAGAIN};
    direction_lock.unlock();
    const Status connected = wait_connected(lock, deadline);
    if (!connected.ok()) return connected.error();
    lock.unlock();
    direction_lock.lock();
    lock.lock();
  }
  const auto something = [&] {
    return closed_ || endpoint_->ring().readable() > 0 || !may_receive_more();
  };
  Status status;
  while (to.left() > 0) {
    const uint64_t readable = endpoint_->ring().readable();
    if (readable == 0 || (peek && readable < to.left())) progress();
    if (endpoint_->ring().readable() > 0) {
      copy_to(to, lock, peek);
      if (state_ == State::kConnected) send_pending();  // announces the space that was freed
      if (peek || !(transfer.flags & MSG_WAITALL)) break;
      continue;
    }
    if (error_) status = Error{error_};
    if (closed_) status = Error{EBADF};
    if (!status.ok() || !may_receive_more()) break;
    if (nonblocking(transfer.flags)) {
      status = Error{EAGAIN};
      break;
    }
    direction_lock.unlock();
    status = wait(lock, deadline, something);
    lock.unlock();
    direction_lock.lock();
    lock.lock();
    if (!status.ok()) break;
  }
  if (transfer.wants_source) {
    transfer.source = SocketAddress::trusted(rdma_get_peer_addr(id_)).seen_by(family_);
  }
  return outcome(total - to.left(), status);
}

// --- direct writes ------------------------------------------------------------------------------

Result<off_t> StreamSocket::iomap(void* buffer, size_t size, int protection, off_t offset) {
  if (protection & ~PROT_WRITE) return Error{EINVAL};
  const std::lock_guard guard(lock_);
  if (!iomaps_) return Error{EINVAL};
  return iomaps_->map(buffer, size, protection & PROT_WRITE, offset);
}

Status StreamSocket::iounmap(void* buffer, size_t size) {
  const std::lock_guard guard(lock_);
  if (!iomaps_) return Error{EINVAL};
  return iomaps_->unmap(buffer, size);
}

Result<size_t> StreamSocket::iowrite(Buffers& from, off_t offset, int flags) {
  Lock direction_lock(send_mutex_);
  Lock lock(lock_);
  const Instant deadline = send_deadline();
  const size_t total = from.left();
  auto at = static_cast<uint64_t>(offset);
  Status status;
  if (iomaps_ && iomaps_->has_updates())
    status = announce_iomaps(direction_lock, lock, flags, deadline);
  while (status.ok() && from.left() > 0) {
    status = wait_to_write(direction_lock, lock, flags, deadline, false);
    if (!status.ok()) break;
    const std::optional<RemoteBuffer> place = find_peer_iomap(at);
    if (!place) break;
    const SendWindow::Write write = endpoint_->window().take_direct(
        std::min<uint64_t>(from.left(), place->length), place->address, place->key);
    lock.unlock();
    const int error = endpoint_->post_write(write, from, nullptr);
    lock.lock();
    post_failed(error);
    at += write.length;
  }
  return outcome(total - from.left(), status);
}

// Returns the peer's writable memory from `offset` on.
std::optional<RemoteBuffer> StreamSocket::find_peer_iomap(uint64_t offset) const {
  for (uint32_t i = 0; i < endpoint_->sizes().iomap_count; ++i) {
    const IomapEntry entry = endpoint_->peer_iomap(i);
    const uint64_t into = offset - entry.offset;
    if (offset < entry.offset || into >= entry.buffer.length) continue;
    return RemoteBuffer{entry.buffer.address + into, entry.buffer.key,
                        entry.buffer.length - static_cast<uint32_t>(into)};
  }
  return std::nullopt;
}

}  // namespace verbena::rsocket
