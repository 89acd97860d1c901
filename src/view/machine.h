// The current state of this machine.
#pragma once

#include "view/tree.h"

namespace verbena::view {

class ThisMachine : public Machine {
 public:
  std::vector<runtime::DeviceInfo> devices() const override;
  std::string hardware(const runtime::DeviceInfo& device) const override;
  uint64_t counter(const std::string& device, std::string_view name) const override;
};

}  // namespace verbena::view
