// A process's place among the Verbena processes of one network namespace. A slot, the top byte of
// every QPN the process hands out, is claimed by binding an abstract Unix datagram socket of that
// number: the kernel makes it exclusive and frees it when the process dies, however it dies. Over
// that socket go packets that the kernel gave to the wrong process, reports for steering, and
// questions for counters.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "host/local_address.h"
#include "host/nap_budget.h"
#include "os/unique_fd.h"
#include "os/unix_address.h"
#include "wire/packet_io.h"

namespace verbena::host {

inline constexpr uint8_t kFirstSlot = 1;   // slot 0 is QP0, QP1 and nobody's
inline constexpr uint8_t kLastSlot = 254;  // slot 255 would contain the multicast QPN

// A service that a process listens to with a device. One process has it at a time: it is the name
// of another abstract Unix socket, over which requests that came to the wrong process are passed
// on.
struct ServiceName {
  enum class Where : uint8_t { Address, AnyIpv4, AnyIpv6 };
  uint32_t interface_index = 0;
  uint64_t service_id = 0;
  Where where = Where::Address;
  wire::Gid address;  // where == Address
  bool operator==(const ServiceName&) const = default;
};

// What became of something passed on.
enum class Forwarded : uint8_t {
  Yes,
  Nobody,   // no process has that slot, or listens to that service
  Dropped,  // it does not keep up
};

// Whether a sender waits a moment for a receiver whose queue is full (nap_budget.h).
enum class Wait : uint8_t { No, Yes };

// Packets of one train that another process received for us. The train travels as it arrived, since
// a Unix socket queues few messages: every `stride` bytes (the last may be shorter) are one packet,
// which still ends in its ICRC, checked over there.
struct Stray {
  wire::RxMeta meta;
  uint32_t stride = 0;
  std::vector<std::byte> bytes;
};

// "Of the sockets on this address, the one of this slot answered to this index, and requests for
// these services are for it."
struct MemberReport {
  LocalAddress address;
  uint32_t round = 0;  // which of the asker's rounds of probes this answers
  uint16_t index = 0;
  uint8_t slot = 0;
  std::vector<uint32_t> services{};  // the lower half of each id; the upper one is zero
};
inline constexpr size_t kMostServicesInReport = 512;

// What one live slot says about itself. Another user's process does not answer: pid 0, no text.
struct SlotReport {
  uint8_t slot = 0;
  pid_t pid = 0;
  uid_t uid = 0;
  std::string text;
};

// Whether a Unix socket's abstract name, its leading zero included, is that of a slot.
bool is_slot_name(std::string_view name);

class SlotDirectory;

// One datapath's share of what arrives at the directory. Any thread may deliver; its owner takes.
class Mailbox {
 public:
  explicit Mailbox(SlotDirectory& directory);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // From now on strays and reports for this address come here.
  void add_address(const LocalAddress& address);
  // Moves what has come to the end of these. Also quiets wake_fd().
  void take(std::vector<Stray>& strays, std::vector<MemberReport>& reports);
  // Readable while something waits that another thread's poll() put here.
  int wake_fd() const { return wake_.get(); }

 private:
  friend class SlotDirectory;
  SlotDirectory& directory_;
  os::UniqueFd wake_;
  // Guarded by the directory's mutex:
  std::vector<LocalAddress> addresses_;
  std::vector<Stray> strays_;
  std::vector<MemberReport> reports_;
  bool woken_ = false;
};

// Thread-safe: a process has one, all its datapaths share it.
class SlotDirectory {
 public:
  using Answer = std::function<std::string()>;

  // Claims a free slot. `answer` is what `verbena counters` will print for this process. It is
  // called inside poll(), hence inside some datapath's receive() with that owner's lock held: it
  // must not wait for a lock that is held around receive().
  static Result<std::unique_ptr<SlotDirectory>> claim(Answer answer = {});

  uint8_t slot() const { return slot_; }

  // Sends (part of) a train to its owner, see Stray.
  Forwarded forward(uint8_t to_slot, const LocalAddress& arrived_at, const wire::RxMeta& meta,
                    std::span<const std::byte> bytes, uint32_t stride, Wait wait = Wait::Yes);
  // One packet, likewise.
  Forwarded forward(const ServiceName& to, const LocalAddress& arrived_at, const wire::RxMeta& meta,
                    std::span<const std::byte> bytes);
  Forwarded report(uint8_t to_slot, const MemberReport& report);

  // EADDRINUSE: another process has it, or this one.
  Status claim_service(const ServiceName& name);
  void release_service(const ServiceName& name);
  static bool is_claimed(const ServiceName& name);
  // Those claimed for an address, or for every one of its family, as a MemberReport has them.
  std::vector<uint32_t> services_at(const LocalAddress& address) const;

  // Reads what has arrived, a bounded amount, sorts it into mailboxes and answers questions. Never
  // blocks. `self` is the caller's mailbox, which need not be woken.
  void poll(const Mailbox* self);
  // One of them is readable while poll() has something to do.
  int fd() const { return socket_.get(); }
  int services_fd() const { return services_epoll_.get(); }

  // Strays that arrived for an address nobody here listens on, or faster than they were taken.
  uint64_t undeliverable() const;
  // How often a sender waited for a receiver.
  uint64_t naps() const { return naps_.load(std::memory_order_relaxed); }

  // Asks every live slot of this network namespace for its counters; waits at most `patience`.
  static std::vector<SlotReport> query_all(Duration patience);

 private:
  friend class Mailbox;

  SlotDirectory(os::UniqueFd socket, uint8_t slot, Answer answer);
  struct Question;
  void read_all(int fd, const Mailbox* self, std::vector<Question>& questions);
  void deliver_stray(std::span<const std::byte> message, const Mailbox* self);
  void deliver_report(std::span<const std::byte> message, const Mailbox* self);
  Mailbox* mailbox_of(const LocalAddress& address);
  static void wake(Mailbox& mailbox, const Mailbox* self);
  Forwarded deliver(const os::UnixAddress& to, uint64_t destination,
                    std::span<const std::byte> head, std::span<const std::byte> body);
  std::optional<Duration> next_nap(uint64_t destination);

  const os::UniqueFd socket_;
  const uint8_t slot_;
  const Answer answer_;
  mutable std::mutex mutex_;
  const os::UniqueFd services_epoll_;  // around the sockets of services_
  std::vector<Mailbox*> mailboxes_;
  struct Service {
    ServiceName name;
    os::UniqueFd socket;
  };
  std::vector<Service> services_;
  std::mutex nap_mutex_;  // held for a moment, never while something waits
  NapBudget nap_budget_;  // under nap_mutex_
  std::atomic<uint64_t> naps_{0};
  uint64_t undeliverable_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace verbena::host
