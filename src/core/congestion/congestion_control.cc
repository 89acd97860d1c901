// The list of algorithms. A new one is one line here and a file of its own.
#include "core/congestion/congestion_control.h"

#include <array>

#include "core/congestion/aimd.h"
#include "core/congestion/fixed_window.h"

namespace verbena::core {
namespace {

template <typename Algorithm>
std::unique_ptr<CongestionControl> make() {
  return std::make_unique<Algorithm>();
}

struct Registration {
  CongestionAlgorithm algorithm;
  std::string_view name;
  std::unique_ptr<CongestionControl> (*make)();
};

constexpr std::array kRegistrations = {
    Registration{CongestionAlgorithm::Aimd, "aimd", make<Aimd>},
    Registration{CongestionAlgorithm::FixedWindow, "off", make<FixedWindow>},
};

constexpr bool is_in_order_of_the_enum() {
  for (size_t i = 0; i < kRegistrations.size(); ++i) {
    if (kRegistrations[i].algorithm != static_cast<CongestionAlgorithm>(i)) return false;
  }
  return true;
}
static_assert(is_in_order_of_the_enum());

}  // namespace

std::unique_ptr<CongestionControl> make_congestion_control(CongestionAlgorithm algorithm) {
  return kRegistrations[static_cast<size_t>(algorithm)].make();
}

std::optional<CongestionAlgorithm> find_congestion_algorithm(std::string_view name) {
  for (const Registration& registration : kRegistrations) {
    if (registration.name == name) return registration.algorithm;
  }
  return std::nullopt;
}

}  // namespace verbena::core
