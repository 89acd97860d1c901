// Connections that did not come about, or ended badly, in words.
#pragma once

#include <string>

#include "cm/agent.h"
#include "cm/events.h"

namespace verbena::runtime {

// Empty for what is as it should be.
std::string describe(const cm::Event& event);
// A request that `refused` of an agent's counters says was refused; empty for the other counters.
std::string describe_refusal(const cm::ReceivedMad& request, cm::CounterId refused);

}  // namespace verbena::runtime
