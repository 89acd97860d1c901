// Where VERBENA_LOG=debug: what a program does with the device, a line for each step that
// succeeded, for people who learn or who debug. Elsewhere none of it is called: hot calls are told
// by functions that stand in front of the real ones in a context's tables.
#pragma once

#include <infiniband/verbs.h>

#include <span>

#include "core/types.h"
#include "runtime/log.h"

namespace verbena::abi {

inline bool narrating() { return runtime::log_enabled(runtime::LogLevel::Debug); }

// Each is called after the fact, and only while narrating.
void narrate_region(const ibv_mr& mr, unsigned access);
void narrate_completion_queue(const ibv_cq& cq);
void narrate_queue_pair(const ibv_qp& qp, const ibv_qp_cap& cap);
void narrate_change(const ibv_qp& qp, ibv_qp_state before, const ibv_qp_attr& attr, int mask);
void narrate_posted(const ibv_qp& qp, std::span<const core::SendRequest> requests);

// From now on posting and polling through these tables is told.
void narrate_calls(ibv_context_ops& operations);
void narrate_calls(ibv_cq_ex& cq);

}  // namespace verbena::abi
