// The fixed window as an algorithm that users can choose: no congestion control.
#include "core/congestion/fixed_window.h"

namespace verbena::core {

std::unique_ptr<CongestionControl> make_off() {
  return std::make_unique<FixedWindow>(CongestionControl::kReceiveBufferBytes);
}

}  // namespace verbena::core
