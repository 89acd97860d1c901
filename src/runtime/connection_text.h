// Explains failed connections in words.
#pragma once

#include <string>

#include "cm/agent.h"
#include "cm/events.h"

namespace verbena::runtime {

// Empty for an event that is no failure.
std::string describe(const cm::Event& event);
// Explains why a request was refused; `refused` is the counter that counted it. Empty for other
// counters.
std::string describe_refusal(const cm::ReceivedMad& request, cm::CounterId refused);

}  // namespace verbena::runtime
