// The ibv_wr_* interface of a queue pair: requests are built here, between ibv_wr_start and
// ibv_wr_complete, and posted together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "abi/verbs/newer_verbs.h"
#include "abi/verbs/session.h"
#include "base/result.h"
#include "core/queue_pair.h"
#include "runtime/nic.h"

namespace verbena::abi {

struct Qp;

// Requests on their way to the send queue. They are stored outside it, because between start and
// complete the program may make any call, including ibv_post_send. All memory is allocated with the
// queue pair.
class WrBuilder {
 public:
  // `single_threaded`: the program promises that one thread at a time uses the queue pair.
  WrBuilder(const core::QpConfig& config, uint64_t operations, bool single_threaded);
  WrBuilder(const WrBuilder&) = delete;
  WrBuilder& operator=(const WrBuilder&) = delete;

  void start();
  // Whether the caller is between start() and end().
  bool started() const { return session_.begun(); }
  void end();

  // Returns the next request, or null if the queue is full or `operation` was not requested.
  core::SendRequest* add(uint64_t operation, const ibv_qp_ex& qp, core::SendOp op);
  // The request that the setters change, or null.
  core::SendRequest* last();
  void set_sges(const ibv_sge* list, size_t count);
  void set_inline(const ibv_data_buf* list, size_t count);
  // Shared until end(): the program may destroy the address handle before it completes.
  void set_address(runtime::SharedAddress handle, wire::Qpn qpn, uint32_t qkey);

  void refuse(const Error& error) {
    if (status_.ok()) status_ = error;
  }
  const Status& status() const { return status_; }
  std::span<const core::SendRequest> requests() const { return {requests_.get(), count_}; }

 private:
  core::Sge* sges_of_last() { return sges_.get() + (count_ - 1) * max_sges_; }

  const uint64_t operations_;
  const uint32_t max_requests_;
  const uint32_t max_sges_;
  const uint32_t max_inline_;
  std::unique_ptr<core::SendRequest[]> requests_;
  std::unique_ptr<runtime::SharedAddress[]> addresses_;  // referenced by the requests
  std::unique_ptr<core::Sge[]> sges_;
  std::unique_ptr<std::byte[]> inline_;
  Session session_;  // from start to complete or abort
  size_t count_ = 0;
  Status status_;  // the first error
};

// EOPNOTSUPP unless a queue pair of this type supports all `operations` (send_ops_flags).
Status check_operations(unsigned qp_type, uint64_t operations);

// For a queue pair with a builder.
void fill_builder_table(Qp& qp);

}  // namespace verbena::abi
