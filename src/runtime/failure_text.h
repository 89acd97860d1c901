// A failed queue pair in words: what happened, and what usually causes it.
#pragma once

#include <string>

#include "core/events.h"

namespace verbena::runtime {

std::string describe(const core::QpFailure& failure);
// An address in the usual notation.
std::string to_text(const wire::Gid& gid);

}  // namespace verbena::runtime
