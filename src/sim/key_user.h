// KeyUser: a connection whose peer accesses keyed areas of a process, and whose queue pair there
// binds and invalidates windows. It checks the completions of both ends.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "sim/keyed_area.h"
#include "sim/ledger.h"
#include "sim/receive_pool.h"

namespace verbena::sim {

class KeyUser {
 public:
  static constexpr uint32_t kPlaces = 4;  // requests at a time

  // One end of the connection.
  struct End {
    Host* host = nullptr;
    core::CompletionQueue* cq = nullptr;
    core::QueuePair* qp = nullptr;
  };
  using Areas = std::vector<std::unique_ptr<KeyedArea>>;

  // `number` of this user: no two write to the same place of an area. All areas' owners take
  // receives from `receives`.
  KeyUser(World& world, Report& report, uint32_t number, Areas& areas, ReceivePool& receives)
      : world_(world), report_(report), number_(number), areas_(areas), receives_(receives) {}

  void open(const End& peer, const End& owner, const ConnectionShape& shape, bool may_lose_nak);
  // The owner's queue pair, which type 2 windows name.
  uint32_t qpn() const { return owner_.qp->qpn().value(); }
  bool owns(wire::Qpn qpn) const {
    return peer_.qp != nullptr && (qpn == peer_.qp->qpn() || qpn == owner_.qp->qpn());
  }
  bool has_failed() const { return sent_.first_error() || changed_.first_error(); }
  bool is_waiting() const { return !sent_.closed() || !changed_.closed(); }

  // Posts a request of the peer, if a place is free.
  void post_request();
  // Posts the owner's work request that changes `area`.
  void post_change(KeyedArea& area, core::SendRequest request);
  void on_completion(const core::Completion& c);

  // Takes both queue pairs to ERR. After all completions are polled, end() destroys them.
  void stop();
  void end();
  uint64_t refused() const { return refused_; }

 private:
  struct Request {
    uint64_t wr_id = 0;
    core::SendOp op{};
    KeyedArea* area = nullptr;  // null: a SEND without a key
    KeyedArea::Use use;
    uint64_t offset = 0;  // in the area
    uint32_t place = 0;   // of this user
    std::vector<core::Sge> sges;
    Bytes message;
  };
  struct Change {
    uint64_t wr_id;
    KeyedArea* area;
  };

  void post(Request r);
  void post_invalidate(KeyedArea& area);
  void on_sent(const core::Completion& c);
  void on_received(const core::Completion& c);
  void on_changed(const core::Completion& c);
  void check_success(const Request& r);
  void check_failure(core::WcStatus status);
  Prng& prng() { return world_.prng(); }
  void problem(const std::string& what) { report_.problem(world_.now(), what); }

  World& world_;
  Report& report_;
  uint32_t number_;
  Areas& areas_;
  ReceivePool& receives_;
  End peer_, owner_;
  bool may_lose_nak_ = false;
  bool is_stopping_ = false;
  Region local_;  // the peer's, one place per request
  std::vector<uint32_t> free_;
  Ledger sent_, changed_;
  std::deque<Request> requests_;
  std::deque<Request> inbound_;  // messages that must consume the next receives
  std::deque<Change> changes_;
  uint64_t next_wr_id_ = 1;
  uint64_t refused_ = 0;
};

}  // namespace verbena::sim
