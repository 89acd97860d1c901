// With VERBENA_LOG=debug: one log line per successful step of a program, for learning and
// debugging. Otherwise none of this is called: wrappers in a context's tables log the hot calls.
#pragma once

#include <infiniband/verbs.h>

#include <span>

#include "core/types.h"
#include "runtime/log.h"

namespace verbena::abi {

inline bool narrating() { return runtime::log_enabled(runtime::LogLevel::Debug); }

// Called after the step, and only if narrating().
void narrate_region(const ibv_mr& mr, unsigned access);
void narrate_completion_queue(const ibv_cq& cq);
void narrate_queue_pair(const ibv_qp& qp, const ibv_qp_cap& cap);
void narrate_change(const ibv_qp& qp, ibv_qp_state before, const ibv_qp_attr& attr, int mask);
void narrate_posted(const ibv_qp& qp, std::span<const core::SendRequest> requests);

// Replaces the functions for posting and polling in these tables by wrappers that log.
void narrate_calls(ibv_context_ops& operations);
void narrate_calls(ibv_cq_ex& cq);

}  // namespace verbena::abi
