// Exposes, withdraws and looks up entries.
#include "datapath/shm/exposure.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace verbena::datapath {
namespace {

constexpr size_t kBytes = sizeof(ExposureTable);
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// The seal leaves only existing mappings writable. Peers can map the descriptor for reading only;
// otherwise one peer could mislead the others.
constexpr int kSeals = kSizeSeals | F_SEAL_FUTURE_WRITE;

void* map_shared(int descriptor, int protection) {
  void* const at = ::mmap(nullptr, kBytes, protection, MAP_SHARED, descriptor, 0);
  // As with segments, a forked child does not inherit the mapping.
  if (at != MAP_FAILED) ::madvise(at, kBytes, MADV_DONTFORK);
  return at;
}

// In a forked child, another mapping may have this address.
void unmap(const ExposureTable* table, pid_t mapper) {
  if (table != nullptr && mapper == ::getpid()) ::munmap(const_cast<ExposureTable*>(table), kBytes);
}

}  // namespace

Result<OwnExposure> OwnExposure::create() {
  rlimit largest{};  // see Segment::create()
  if (::getrlimit(RLIMIT_FSIZE, &largest) != 0 || largest.rlim_cur < kBytes) {
    return Error{EFBIG, "the file size limit is below the size of the shared memory (ulimit -f)"};
  }
  OwnExposure own;
  own.descriptor_ =
      os::UniqueFd(::memfd_create("exposed-by-verbena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = own.descriptor_.get();
  if (fd < 0) return Error{errno, "the kernel refuses to create shared memory (memfd_create)"};
  if (::ftruncate(fd, kBytes) != 0) return Error{errno, "cannot allocate shared memory"};
  void* const at = map_shared(fd, PROT_READ | PROT_WRITE);
  if (at == MAP_FAILED) return Error{errno, "cannot allocate shared memory"};
  // Kernels before 5.1 do not know the seal. Peers then reject the table, and there is no one-sided
  // access.
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0 && ::fcntl(fd, F_ADD_SEALS, kSizeSeals) != 0) {
    ::munmap(at, kBytes);
    return Error{errno, "cannot seal the size of the shared memory"};
  }
  own.table_ = std::launder(static_cast<ExposureTable*>(at));  // zeros are a valid empty table
  own.mapper_ = ::getpid();
  own.table_->open.store(1, std::memory_order_release);
  return own;
}

OwnExposure::OwnExposure(OwnExposure&& other) noexcept
    : withdrawn_qps_(other.withdrawn_qps_),
      descriptor_(std::move(other.descriptor_)),
      table_(std::exchange(other.table_, nullptr)),
      mapper_(other.mapper_) {}

OwnExposure& OwnExposure::operator=(OwnExposure&& other) noexcept {
  std::swap(withdrawn_qps_, other.withdrawn_qps_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(table_, other.table_);
  std::swap(mapper_, other.mapper_);
  return *this;
}

OwnExposure::~OwnExposure() { unmap(table_, mapper_); }

ExposureCell* OwnExposure::find(uint32_t key) {
  if (table_ == nullptr) return nullptr;
  for (ExposureCell& cell : table_->regions[ExposureTable::group_of(key)]) {
    wire::ExposedRegion region;
    if (cell.load(region) && region.key == key) return &cell;
  }
  return nullptr;
}

// An unused place has key 0 and length 0.
void OwnExposure::expose(const wire::ExposedRegion& region) {
  if (ExposureCell* const cell = find(region.key)) return cell->store(region);
  if (table_ == nullptr) return;
  for (ExposureCell& cell : table_->regions[ExposureTable::group_of(region.key)]) {
    wire::ExposedRegion other;
    if (cell.load(other) && other.length == 0) return cell.store(region);
  }
}

void OwnExposure::withdraw(uint32_t key) {
  if (ExposureCell* const cell = find(key)) cell->store(wire::ExposedRegion{});
}

void OwnExposure::expose(wire::Qpn qpn, const wire::ExposedQp& qp) {
  if (table_ == nullptr) return;
  ExposureCell& cell = table_->qps[qpn.index()];
  wire::ExposedQp before;
  if (!cell.load(before) || before == qp) return;
  if (before != wire::ExposedQp{}) withdrawn_qps_.set(qpn.index());
  cell.store(qp);
}

bool OwnExposure::take_withdrawn(wire::Qpn qpn) {
  const bool withdrawn = withdrawn_qps_.test(qpn.index());
  withdrawn_qps_.reset(qpn.index());
  return withdrawn;
}

void OwnExposure::withdraw(wire::Qpn qpn) { expose(qpn, wire::ExposedQp{}); }

void OwnExposure::close() {
  if (table_ != nullptr) table_->open.store(0, std::memory_order_release);
}

Result<PeerExposure> PeerExposure::map(int descriptor) {
  struct stat file {};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(descriptor, &file) != 0 ||
      file.st_size != static_cast<off_t>(kBytes)) {
    return Error{EINVAL, "the peer sent an invalid exposure table"};
  }
  void* const at = map_shared(descriptor, PROT_READ);
  if (at == MAP_FAILED) return Error{errno, "cannot allocate shared memory"};
  PeerExposure peer;
  peer.table_ = std::launder(static_cast<const ExposureTable*>(at));
  peer.mapper_ = ::getpid();
  return peer;
}

PeerExposure::PeerExposure(PeerExposure&& other) noexcept
    : table_(std::exchange(other.table_, nullptr)), mapper_(other.mapper_) {}

PeerExposure& PeerExposure::operator=(PeerExposure&& other) noexcept {
  std::swap(table_, other.table_);
  std::swap(mapper_, other.mapper_);
  return *this;
}

PeerExposure::~PeerExposure() { unmap(table_, mapper_); }

// The same checks as in the peer's responder.
uint64_t PeerExposure::resolve(const wire::OneSided& r, const wire::Gid& source,
                               const wire::Gid& destination) const {
  if (table_->open.load(std::memory_order_acquire) == 0) return 0;
  wire::ExposedQp qp;
  if (!table_->qps[r.destination.index()].load(qp)) return 0;
  const bool connected =
      qp.peer == r.source && qp.source == destination && qp.destination == source;
  if (!connected || (qp.access & r.access) != r.access) return 0;
  for (const ExposureCell& cell : table_->regions[ExposureTable::group_of(r.rkey)]) {
    wire::ExposedRegion region;
    if (!cell.load(region) || region.key != r.rkey || region.length == 0) continue;
    const bool covered = r.remote_address >= region.iova && r.length <= region.length &&
                         r.remote_address - region.iova <= region.length - r.length;
    if (!covered || region.pd != qp.pd || (region.access & r.access) != r.access) return 0;
    return region.base + (r.remote_address - region.iova) + r.offset;
  }
  return 0;
}

}  // namespace verbena::datapath
