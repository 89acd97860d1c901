// The fixed window as an algorithm that users can choose.
#include "core/congestion/fixed_window.h"

#include "core/congestion/aimd.h"

namespace verbena::core {

std::unique_ptr<CongestionControl> make_fixed() {
  return std::make_unique<FixedWindow>(Aimd::kMaxWindow);
}

}  // namespace verbena::core
