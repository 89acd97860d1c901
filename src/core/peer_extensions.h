// The extensions that two Verbenas use with each other. Without core/ext (the folder is
// deleted, or VERBENA_PLAIN_ROCE is set) every peer is a plain one.
#pragma once

#if __has_include("core/ext/peer_extensions.h") && !defined(VERBENA_PLAIN_ROCE)
#include "core/ext/peer_extensions.h"  // IWYU pragma: export
#else
#include "core/plain_peer.h"  // IWYU pragma: export
#endif
