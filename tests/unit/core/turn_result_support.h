// A turn result that the tests of AckScheduler and ProgressPolicy vary.
#pragma once

#include "core/ack_scheduler.h"

namespace verbena::core {

// A turn that received one WRITE.
inline constexpr TurnResult kTurnWithWrite{.brought_messages = true,
                                           .response_due = false,
                                           .used_receives = false,
                                           .completed = false,
                                           .raises_event = false,
                                           .started_idle = true,
                                           .has_more = false,
                                           .only_acks_to_send = true,
                                           .packets = 1};

}  // namespace verbena::core
