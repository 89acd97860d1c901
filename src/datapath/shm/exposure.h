// The exposure table: the memory regions and queue pairs of a process that its peers may access. It
// is in a memfd that no other process can write to (F_SEAL_FUTURE_WRITE). A reader copies an entry
// and detects whether the copy is consistent.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.h"
#include "base/seq_cell.h"
#include "datapath/shm/direct_copy.h"
#include "os/unique_fd.h"
#include "wire/one_sided.h"

namespace verbena::datapath {

using ExposureCell = SeqCell<7>;
static_assert(sizeof(ExposureCell) == 64);

// The layout of the table. A queue pair's place is its index. A region's key has a few possible
// places, by its upper bits, which are random. If all of them are taken, the region is not exposed.
struct ExposureTable {
  static constexpr size_t kQps = size_t{1} << 16;
  static constexpr size_t kPlacesPerKey = 8;
  static constexpr size_t kKeyGroups = 2048;

  std::atomic<uint32_t> open{0};
  alignas(4096) std::array<ExposureCell, kQps> qps;
  std::array<std::array<ExposureCell, kPlacesPerKey>, kKeyGroups> regions;

  static size_t group_of(uint32_t key) { return (key >> 8) % kKeyGroups; }
};

// The table of this process.
class OwnExposure final : public wire::Exposure {
 public:
  OwnExposure() = default;  // exposes nothing
  static Result<OwnExposure> create();
  OwnExposure(OwnExposure&& other) noexcept;
  OwnExposure& operator=(OwnExposure&& other) noexcept;
  ~OwnExposure() override;

  void expose(const wire::ExposedRegion& region) override;
  void withdraw(uint32_t key) override;
  void expose(wire::Qpn qpn, const wire::ExposedQp& qp) override;
  void withdraw(wire::Qpn qpn) override;
  // Whether this queue pair was withdrawn or restricted since the last call.
  bool take_withdrawn(wire::Qpn qpn);
  // Withdraws everything, permanently.
  void close();

  int descriptor() const { return descriptor_.get(); }  // for peers; -1: none

 private:
  ExposureCell* find(uint32_t key);

  std::bitset<ExposureTable::kQps> withdrawn_qps_;
  os::UniqueFd descriptor_;
  ExposureTable* table_ = nullptr;
  pid_t mapper_ = 0;
};

// The table of a peer. Unusable until it is mapped. Its content is not checked, because it
// describes only the peer's own memory.
class PeerExposure {
 public:
  PeerExposure() = default;
  // EINVAL: not a table that OwnExposure creates.
  static Result<PeerExposure> map(int descriptor);
  PeerExposure(PeerExposure&& other) noexcept;
  PeerExposure& operator=(PeerExposure&& other) noexcept;
  ~PeerExposure();

  bool mapped() const { return table_ != nullptr; }
  // The address, in the peer, of the memory that this part of the request accesses; 0 if the peer
  // does not permit the whole request to a queue pair with this connection.
  uint64_t resolve(const wire::OneSided& request, const wire::Gid& source,
                   const wire::Gid& destination) const;

 private:
  const ExposureTable* table_ = nullptr;
  pid_t mapper_ = 0;
};

}  // namespace verbena::datapath
