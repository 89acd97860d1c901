// Iomaps: see iomaps.h.
#include "rsocket/iomaps.h"

#include <algorithm>
#include <cerrno>

namespace verbena::rsocket {

Iomaps::Iomaps(ibv_pd* protection_domain, uint32_t entries)
    : protection_domain_(protection_domain), used_(entries) {}

Iomaps::~Iomaps() {
  for (const Mapping& mapping : mappings_) ibv_dereg_mr(mapping.region);
}

Result<off_t> Iomaps::map(void* buffer, size_t size, bool writable, off_t offset) {
  if (size > UINT32_MAX) return Error{EINVAL};  // the table has 32 bits for it
  Mapping mapping;
  if (writable) {
    const auto free = std::find(used_.begin(), used_.end(), false);
    if (free == used_.end()) return Error{ENOMEM};
    mapping.index = static_cast<uint32_t>(free - used_.begin());
  }
  mapping.region = ibv_reg_mr(protection_domain_, buffer, size,
                              IBV_ACCESS_LOCAL_WRITE | (writable ? IBV_ACCESS_REMOTE_WRITE : 0));
  if (!mapping.region) return Error{errno};
  if (offset == -1) offset = static_cast<off_t>(reinterpret_cast<uintptr_t>(buffer));
  mapping.offset = static_cast<uint64_t>(offset);
  mappings_.push_back(mapping);
  if (writable) {
    used_[mapping.index] = true;
    changed(mapping.index);
  }
  return offset;
}

Status Iomaps::unmap(void* buffer, size_t size) {
  const auto it = std::find_if(mappings_.begin(), mappings_.end(), [&](const Mapping& mapping) {
    return mapping.region->addr == buffer && mapping.region->length == size;
  });
  if (it == mappings_.end()) return Error{EINVAL};
  const Mapping gone = *it;
  mappings_.erase(it);
  if (const int error = ibv_dereg_mr(gone.region)) return Error{error};
  if (gone.index != kLocal) {
    used_[gone.index] = false;
    changed(gone.index);  // sends an empty entry, so that the peer stops writing to it
  }
  return {};
}

void Iomaps::changed(uint32_t index) {
  if (std::find(changed_.begin(), changed_.end(), index) == changed_.end()) {
    changed_.push_back(index);
  }
}

Iomaps::Update Iomaps::take_update() {
  const uint32_t index = changed_.front();
  changed_.pop_front();
  for (const Mapping& mapping : mappings_) {
    if (mapping.index != index) continue;
    const RemoteBuffer buffer{reinterpret_cast<uintptr_t>(mapping.region->addr),
                              mapping.region->rkey, static_cast<uint32_t>(mapping.region->length)};
    return {index, {mapping.offset, buffer}};
  }
  return {index, {}};
}

}  // namespace verbena::rsocket
