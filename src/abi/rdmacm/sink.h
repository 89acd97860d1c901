// Where the agents of all devices put what they have to tell.
#pragma once

#include "runtime/connection_manager.h"

namespace verbena::rdmacm {

runtime::ConnectionManager::Sink& sink();

}  // namespace verbena::rdmacm
