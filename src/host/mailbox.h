// Mailbox: the messages of other processes for one datapath of this process. The process's
// SlotDirectory receives them and delivers each to the mailbox of its address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "host/local_address.h"
#include "os/unique_fd.h"
#include "wire/packet_io.h"

namespace verbena::host {

// Packets of one GRO batch that another process received for us. The batch is forwarded whole,
// because a Unix socket queues few messages. Every `stride` bytes are one packet (the last may be
// shorter). Each packet still ends in its ICRC, which the other process has checked.
struct MisroutedPackets {
  wire::RxMeta meta;
  uint32_t stride = 0;
  std::vector<std::byte> bytes;
};

// Reports that the socket of this slot has this index among the sockets of the address, and that
// requests for these services belong to it.
struct MemberReport {
  LocalAddress address;
  uint32_t round = 0;  // the receiver's probe round that this report replies to
  uint16_t index = 0;
  uint8_t slot = 0;
  std::vector<uint32_t> services{};  // the lower half of each ID; the upper half is zero
};
inline constexpr size_t kMaxServicesInReport = 512;

class SlotDirectory;

// Any thread may deliver; the owner takes. The directory delivers until the mailbox is destroyed.
class Mailbox {
 public:
  // A mailbox that is not emptied refuses further messages.
  static constexpr size_t kMaxBatches = 256;
  static constexpr size_t kMaxReports = 1024;

  explicit Mailbox(SlotDirectory& directory);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // --- the owner --------------------------------------------------------------------------------
  // Misrouted packets and reports for this address are delivered here from now on.
  void add_address(const LocalAddress& address);
  // Appends the received messages to these vectors. Also clears wake_fd().
  void take(std::vector<MisroutedPackets>& misrouted, std::vector<MemberReport>& reports);
  // Readable while the mailbox contains messages whose delivery woke the owner.
  int wake_fd() const { return wake_.get(); }

  // --- the directory ----------------------------------------------------------------------------
  bool has_address(const LocalAddress& address) const;
  // False, and nothing is delivered, if the mailbox is full. `wakes_owner`: the owner is not the
  // caller.
  bool deliver(MisroutedPackets&& batch, bool wakes_owner);
  bool deliver(MemberReport&& report, bool wakes_owner);

 private:
  void wake_owner();

  SlotDirectory& directory_;
  const os::UniqueFd wake_;
  mutable std::mutex mutex_;  // guards the rest; taken after the directory's
  std::vector<LocalAddress> addresses_;
  std::vector<MisroutedPackets> misrouted_;
  std::vector<MemberReport> reports_;
  bool woken_ = false;
};

}  // namespace verbena::host
