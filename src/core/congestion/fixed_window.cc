// The fixed window as an algorithm that users can choose.
#include "core/congestion/fixed_window.h"

namespace verbena::core {

std::unique_ptr<CongestionControl> make_fixed() { return std::make_unique<FixedWindow>(); }

}  // namespace verbena::core
