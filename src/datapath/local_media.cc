// The registry of local media.
#include "datapath/local_media.h"

#include "datapath/shm/shm_datapath.h"

namespace verbena::datapath {
namespace {

constexpr LocalMediumKind kMedia[] = {{"shared memory", &ShmDatapath::open_medium}};

}  // namespace

std::span<const LocalMediumKind> local_media() { return kMedia; }

}  // namespace verbena::datapath
