// Runs in which one side violates a rule or the connection breaks. Both ends must report the error,
// complete everything in order, and be usable again. A neighbour connection on the same hosts must
// not be affected.
#include <algorithm>
#include <cstdio>

#include "sim/ledger.h"
#include "sim/report.h"
#include "sim/scatter_gather.h"
#include "sim/seed_run.h"
#include "sim/world.h"

namespace verbena::sim {
namespace {

using core::QpState;
using core::SendOp;
using core::WcStatus;

enum class Violation : uint8_t {
  WrongRkey,
  OutOfBounds,
  NotPermitted,
  SendTooLong,
  BadInvalidate,
  LocalKey,
  ReceiveKey,
  TooManyReads,
  NoReceive,
  Deregister,
  RequesterToError,
  ResponderToError,
  DestroyResponder,
  DestroyRequester,
  Partition,
  WindowInvalidated,
  WindowInvalidatedByPeer,
  WindowRebound,
  WindowOfAnother,
  kCount,
};

constexpr const char* kNames[] = {"wrong rkey",
                                  "out of bounds",
                                  "access not permitted",
                                  "SEND too long",
                                  "bad invalidate",
                                  "bad lkey",
                                  "receive with bad lkey",
                                  "more READs than agreed",
                                  "no receive posted",
                                  "deregistered",
                                  "requester to ERR",
                                  "responder to ERR",
                                  "responder destroyed",
                                  "requester destroyed",
                                  "partition",
                                  "window invalidated",
                                  "window invalidated by its user",
                                  "window bound again",
                                  "window of another queue pair"};

class BrokenRun {
 public:
  explicit BrokenRun(uint64_t seed) : world_(seed), in_memory_(shares_memory(seed)) {}

  RunResult run() {
    set_up();
    post_everything();
    const bool quiet = world_.run_until_quiet(seconds(60));
    if (!quiet) problem("the run does not become idle");
    poll();
    check_outcome();
    for (const std::string& what : world_.process_problems()) problem(what);
    if (responder_exists_ && requester_exists_) check_reuse();
    RunResult r = result_of(RunKind::Broken, world_, report_);
    r.shape = std::string(kNames[static_cast<int>(violation_)]) + (lossy_ ? ", lossy" : "") +
              (in_memory_ ? ", through memory" : "");
    return r;
  }

 private:
  static constexpr uint32_t kDepth = 32;
  static constexpr uint32_t kBytes = 1 << 18;
  static constexpr std::byte kUntouched{0xC3};
  Prng& prng() { return world_.prng(); }
  void problem(const std::string& what) { report_.problem(world_.now(), what); }

  void set_up() {
    violation_ = static_cast<Violation>(prng().below(static_cast<uint64_t>(Violation::kCount)));
    lossy_ = prng().below(3) == 0;
    if (lossy_) world_.network().defaults().packet.loss = 0.02;
    a_ = &world_.add_host(prng().below(4) != 0);
    b_ = &world_.add_host(prng().below(4) != 0);
    if (in_memory_) share_memory();
    cq_a_ = &a_->create_cq(1024);
    cq_b_ = &b_->create_cq(1024);
    const QpShape shape{.depth = kDepth, .sges = 4};
    qa_ = &a_->create_qp(*cq_a_, *cq_a_, shape);
    qb_ = &b_->create_qp(*cq_b_, *cq_b_, shape);
    neighbour_a_ = &a_->create_qp(*cq_a_, *cq_a_, shape);
    neighbour_b_ = &b_->create_qp(*cq_b_, *cq_b_, shape);
    using namespace core;
    ra_ = a_->add_region(kBytes, kLocalWrite);
    rb_ = b_->add_region(kBytes, kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic);
    read_only_ = b_->add_region(4096, kRemoteRead);
    shape_.mtu = prng().below(2) == 0 ? wire::Mtu::k256 : wire::Mtu::k4096;
    shape_.psn_a = 0xFFFFF0;
    shape_.timeout = 6;  // 262 us
    // Sequence errors and implied NAKs count as retries, so a lossy run gets the maximum.
    shape_.retry_count = static_cast<uint8_t>(lossy_ ? 7 : 1 + prng().below(7));
    shape_.rnr_retry = violation_ == Violation::NoReceive ? 3 : 7;
    shape_.min_rnr_timer = 1;
    if (violation_ == Violation::TooManyReads) shape_.read_depth_a = 8;
    connect(*a_, *qa_, *b_, *qb_, shape_);
    if (violation_ == Violation::TooManyReads) permit_only_one_read();
    ConnectionShape healthy = shape_;
    healthy.timeout = 9;
    healthy.retry_count = 7;
    connect(*a_, *neighbour_a_, *b_, *neighbour_b_, healthy);
    if (about_windows()) prepare_window();
  }

  void share_memory() {
    const MemoryLinkShape link = MemoryLinkShape::drawn(world_.memory().prng());
    world_.memory().open(a_->id(), b_->id(), link);
  }
  // Through memory a partition is the end of the link, which affects the neighbour, too.
  bool link_ends() const { return in_memory_ && violation_ == Violation::Partition; }

  bool about_windows() const { return violation_ >= Violation::WindowInvalidated; }

  // A window whose key was valid, or is valid for another queue pair.
  void prepare_window() {
    behind_window_ = b_->add_region(4096, core::kLocalWrite | core::kWindowBind);
    std::ranges::fill(behind_window_.bytes, kUntouched);
    const bool type1 = violation_ == Violation::WindowRebound;
    const uint32_t first =
        b_->engine()
            .memory()
            .add_window(1, type1 ? core::WindowType::Type1 : core::WindowType::Type2)
            .value();
    window_key_ = next_key(first);
    core::SendRequest bind;
    bind.op = SendOp::BindWindow;
    bind.window_rkey = first;
    bind.bind = {.region_lkey = behind_window_.key,
                 .address = behind_window_.iova,
                 .length = behind_window_.bytes.size(),
                 .access = core::kRemoteWrite | core::kRemoteRead | core::kRemoteAtomic,
                 .new_rkey = window_key_};
    change_window(violation_ == Violation::WindowOfAnother ? *neighbour_b_ : *qb_, bind);
    if (type1) {
      bind.window_rkey = window_key_;
      bind.bind.new_rkey = next_key(window_key_);
      if (prng().below(2) == 0) bind.bind.length = 0;
      change_window(*qb_, bind);
    } else if (violation_ == Violation::WindowInvalidated) {
      core::SendRequest invalidate;
      invalidate.op = SendOp::LocalInvalidate;
      invalidate.immediate_or_rkey = window_key_;
      change_window(*qb_, invalidate);
    }
  }

  static uint32_t next_key(uint32_t key) { return (key & ~0xFFu) | ((key + 1) & 0xFF); }

  void change_window(core::QueuePair& qp, core::SendRequest s) {
    s.flags = core::kSignaled;
    core::Completion c;
    if (!b_->post_send(qp, s).ok() || !world_.run_until_quiet(seconds(1)) ||
        cq_b_->poll(&c, 1) != 1 || c.status != WcStatus::Success) {
      problem("a window cannot be bound or invalidated");
    }
  }

  // The responder has one responder resource; the requester expects more.
  void permit_only_one_read() {
    using namespace core::qp_attr;
    core::QpAttributes attr = qb_->attributes();
    reset(*b_, *qb_);
    attr.state = QpState::Init;
    b_->modify(*qb_, attr, kState | kPkeyIndex | kPort | kAccessFlags);
    attr.state = QpState::Rtr;
    attr.max_dest_read_atomic = 1;
    b_->modify(
        *qb_, attr,
        kState | kAddressVector | kPathMtu | kDestQpn | kRqPsn | kMaxDestRdAtomic | kMinRnrTimer);
    attr.state = QpState::Rts;
    b_->modify(*qb_, attr, kState | kTimeout | kRetryCount | kRnrRetry | kSqPsn | kMaxRdAtomic);
  }

  static void reset(Host& host, core::QueuePair& qp) {
    core::QpAttributes attr;
    attr.state = QpState::Reset;
    host.modify(qp, attr, core::qp_attr::kState);
  }

  core::SendRequest harmless(core::Sge& sge) {
    core::SendRequest s;
    const auto length = static_cast<uint32_t>(prng().below(20000));
    const uint64_t at = prng().below(kBytes - length);
    sge = {ra_.iova + at, length, ra_.key};
    s.sges = {&sge, 1};
    s.op = prng().below(2) == 0 ? SendOp::Write : SendOp::Read;
    if (violation_ == Violation::TooManyReads) s.op = SendOp::Write;
    s.remote_address = rb_.iova + at;
    s.rkey = rb_.key;
    return s;
  }

  void post(core::SendRequest s, bool signaled) {
    s.wr_id = next_wr_id_++;
    s.flags |= signaled ? core::kSignaled : 0;
    sent_.posted(s.wr_id, signaled);
    if (!a_->post_send(*qa_, s).ok()) problem("post_send refused");
  }

  void post_harmless(core::Sge& sge) {
    for (uint64_t i = 0, n = prng().below(10); i < n; ++i) {
      const core::SendRequest request = harmless(sge);
      const bool signaled = prng().below(2) == 0;
      post(request, signaled);
    }
  }

  void post_everything() {
    const auto receives = violation_ == Violation::NoReceive ? 0 : 2 + prng().below(8);
    for (uint64_t i = 0; i < receives; ++i) {
      const bool bad = violation_ == Violation::ReceiveKey && i == 0;
      const core::Sge sge{rb_.iova + i * 1024, 1024, bad ? rb_.key ^ 1 : rb_.key};
      received_.posted(1000 + i, true);
      if (!b_->post_receive(*qb_, {.wr_id = 1000 + i, .sges = {&sge, 1}}).ok())
        problem("post_receive");
    }
    core::Sge sge;
    post_harmless(sge);
    culprit_ = sent_.size();
    commit_violation();
    post_harmless(sge);

    for (uint64_t i = 0; i < 10; ++i) {
      core::SendRequest s = harmless(sge);
      s.wr_id = i;
      s.flags = core::kSignaled;
      neighbour_.posted(i, true);
      if (!a_->post_send(*neighbour_a_, s).ok()) problem("post_send of the neighbour refused");
    }
  }

  void commit_violation() {
    core::Sge sge{ra_.iova, 512, ra_.key};
    core::SendRequest s;
    s.sges = {&sge, 1};
    s.op = SendOp::Write;
    s.remote_address = rb_.iova;
    s.rkey = rb_.key;
    const Duration soon = microseconds(static_cast<int64_t>(prng().below(40)));
    switch (violation_) {
      case Violation::WrongRkey:
        s.op = prng().below(2) == 0 ? SendOp::Read : SendOp::Write;
        s.rkey ^= 1u << prng().below(32);
        break;
      case Violation::OutOfBounds:
        s.remote_address = rb_.iova + kBytes - prng().below(512);
        break;
      case Violation::NotPermitted:
        s.remote_address = read_only_.iova;
        s.rkey = read_only_.key;
        break;
      case Violation::SendTooLong:
        s.op = SendOp::Send;
        sge.length = 1025 + static_cast<uint32_t>(prng().below(5000));
        break;
      case Violation::BadInvalidate:
        s.op = SendOp::SendInvalidate;
        s.immediate_or_rkey = rb_.key;
        break;
      case Violation::LocalKey:
        sge.lkey ^= 1;
        break;
      case Violation::ReceiveKey:
      case Violation::NoReceive:
        s.op = SendOp::Send;
        break;
      case Violation::TooManyReads:
        s.op = SendOp::Read;
        for (int i = 0; i < 6; ++i) post(s, true);
        break;
      case Violation::Deregister:
        s.op = prng().below(2) == 0 ? SendOp::Read : SendOp::Write;
        sge.length = kBytes;
        world_.after(soon, [this] {
          if (!b_->process().remove_region(rb_.key).ok()) problem("deregistration refused");
        });
        break;
      case Violation::RequesterToError:
        world_.after(soon, [this] { a_->to_error(*qa_); });
        break;
      case Violation::ResponderToError:
        world_.after(soon, [this] { b_->to_error(*qb_); });
        break;
      case Violation::DestroyResponder:
        world_.after(soon, [this] {
          b_->destroy(*qb_);
          responder_exists_ = false;
        });
        break;
      case Violation::DestroyRequester:
        world_.after(soon, [this] {
          poll();
          a_->destroy(*qa_);
          requester_exists_ = false;
        });
        break;
      case Violation::Partition:
        if (in_memory_) {
          world_.after(soon, [this] { a_->on_link_end(b_->id()); });
          world_.after(soon + microseconds(static_cast<int64_t>(prng().below(100))),
                       [this] { b_->on_link_end(a_->id()); });
          break;
        }
        // Longer than all retries of this connection, shorter than the neighbour's.
        world_.after(soon, [this] { world_.network().link(0, 1).partitioned = true; });
        world_.after(soon + milliseconds(4),
                     [this] { world_.network().link(0, 1).partitioned = false; });
        break;
      case Violation::WindowInvalidatedByPeer: {
        core::SendRequest invalidate = s;
        invalidate.op = SendOp::SendInvalidate;
        invalidate.immediate_or_rkey = window_key_;
        post(invalidate, true);
        culprit_ = sent_.size();
        [[fallthrough]];
      }
      case Violation::WindowInvalidated:
      case Violation::WindowRebound:
      case Violation::WindowOfAnother: {
        static constexpr SendOp kOps[] = {SendOp::Write, SendOp::Read, SendOp::AtomicWrite,
                                          SendOp::FetchAdd};
        s.op = kOps[prng().below(4)];
        if (s.op == SendOp::AtomicWrite || s.op == SendOp::FetchAdd) sge.length = 8;
        s.rkey = window_key_;
        s.remote_address = behind_window_.iova;
        s.compare_add = 1;
        break;
      }
      case Violation::kCount:
        break;
    }
    post(s, prng().below(2) == 0);
  }

  void poll() {
    core::Completion c;
    const auto check_completion = [&](Ledger& ledger) {
      const std::string what = ledger.completed(c);
      if (!what.empty()) problem(what);
    };
    while (cq_a_->poll(&c, 1) == 1) {
      if (c.qpn == neighbour_a_->qpn()) {
        check_completion(neighbour_);
      } else if (!requester_exists_) {
        problem("a destroyed queue pair completes");
      } else {
        check_completion(sent_);
      }
    }
    while (cq_b_->poll(&c, 1) == 1) check_completion(received_);
  }

  // Checks the outcome of each violation: the status of the request at fault, and the peer's state.
  void check_outcome() {
    if (!a_->arena().intact() || !b_->arena().intact()) problem("memory around regions changed");
    if (!neighbour_.closed() || neighbour_.first_error() || neighbour_.completed_count() != 10) {
      // The neighbour loses a deregistered region, too.
      const bool may_be_affected = violation_ == Violation::Deregister || link_ends();
      if (!may_be_affected || !neighbour_.closed()) problem("the neighbour was affected");
    }
    if (std::ranges::any_of(behind_window_.bytes, [](std::byte b) { return b != kUntouched; })) {
      problem("memory changed through an invalidated window");
    }
    if (a_->engine().next_deadline() != kNever || b_->engine().next_deadline() != kNever) {
      problem("a deadline is left");
    }
    if (neighbour_a_->peer() != nullptr && !neighbour_a_->peer()->is_idle())
      problem("bytes are still in flight");
    if (!requester_exists_) return;
    if (!sent_.closed()) problem("requests are left without a completion");
    check_requester();
    if (responder_exists_) check_responder();
  }

  bool responder_refuses() const {
    if (about_windows()) return true;
    switch (violation_) {
      case Violation::WrongRkey:
      case Violation::OutOfBounds:
      case Violation::NotPermitted:
      case Violation::SendTooLong:
      case Violation::BadInvalidate:
      case Violation::ReceiveKey:
      case Violation::TooManyReads:
        return true;
      default:
        return false;
    }
  }

  // After losses the READs may reach the responder one by one, each after the response to the one
  // before it has left.
  bool may_be_accepted() const { return lossy_ && violation_ == Violation::TooManyReads; }

  void check_requester() {
    const auto error = sent_.first_error();
    const auto expect = [&](std::initializer_list<WcStatus> any) {
      if (!error) return problem("the requester reported no error");
      // When the NAK is lost, the peer sends no other response.
      const bool nak_lost = lossy_ && responder_refuses() && *error == WcStatus::RetryExceeded;
      if (!nak_lost && std::ranges::find(any, *error) == any.end()) {
        problem("wrong status " + std::to_string(static_cast<int>(*error)));
      }
    };
    switch (violation_) {
      case Violation::WrongRkey:
      case Violation::OutOfBounds:
      case Violation::NotPermitted:
      case Violation::BadInvalidate:
      case Violation::WindowInvalidated:
      case Violation::WindowInvalidatedByPeer:
      case Violation::WindowRebound:
      case Violation::WindowOfAnother:
        expect({WcStatus::RemoteAccess});
        break;
      case Violation::SendTooLong:
        expect({WcStatus::RemoteInvalidRequest});
        break;
      case Violation::TooManyReads:
        if (error || !may_be_accepted()) expect({WcStatus::RemoteInvalidRequest});
        break;
      case Violation::LocalKey:
        expect({WcStatus::LocalProtection});
        break;
      case Violation::ReceiveKey:
        expect({WcStatus::RemoteOperation});
        break;
      case Violation::NoReceive:
        expect({WcStatus::RnrRetryExceeded});
        break;
      case Violation::RequesterToError:
        if (error) expect({WcStatus::Flushed});
        break;
      default:  // these may happen too late to have an effect
        if (error) expect({WcStatus::RetryExceeded, WcStatus::RemoteAccess});
        break;
    }
    const bool exact = (responder_refuses() && violation_ != Violation::TooManyReads) ||
                       violation_ == Violation::LocalKey || violation_ == Violation::NoReceive;
    if (error && exact && !lossy_ && sent_.error_index() != culprit_)
      problem("the wrong request failed");
    if (error && qa_->state() != QpState::Error) problem("failed, but not in ERR");
    if (!error && violation_ != Violation::RequesterToError && qa_->state() != QpState::Rts) {
      problem("in ERR without an error");
    }
  }

  void check_responder() {
    if (!received_.closed() && qb_->state() == QpState::Error)
      problem("receives are left unflushed");
    const bool failed = qb_->state() == QpState::Error;
    if (failed && violation_ != Violation::ResponderToError && b_->failures.empty()) {
      problem("failed without a failure record");
    }
    if (!responder_refuses()) return;
    if (!failed && may_be_accepted() && !sent_.first_error()) return;
    if (!failed) problem("the responder accepted it");
    using enum core::EventKind;
    core::EventKind kind = QpAccessError;
    if (violation_ == Violation::SendTooLong || violation_ == Violation::TooManyReads)
      kind = QpRequestError;
    if (violation_ == Violation::ReceiveKey) kind = QpFatal;
    const auto n = std::ranges::count_if(b_->events, [&](const auto& e) { return e.kind == kind; });
    if (n != 1) problem("not exactly one async event");
  }

  // After RESET the queue pair must work as a new one.
  void check_reuse() {
    world_.network().heal();
    core::Sge sge{ra_.iova, 100, ra_.key};
    if (qa_->state() == QpState::Error) {
      core::SendRequest late;
      late.wr_id = 7;
      late.sges = {&sge, 1};
      core::Completion c;
      if (!a_->post_send(*qa_, late).ok() || cq_a_->poll(&c, 1) != 1 || c.wr_id != 7 ||
          c.status != WcStatus::Flushed) {
        problem("a request posted in ERR is not flushed");
      }
    }
    reset(*a_, *qa_);
    reset(*b_, *qb_);
    connect(*a_, *qa_, *b_, *qb_, shape_);
    const Region fresh = b_->add_region(4096, core::kLocalWrite | core::kRemoteWrite);
    core::SendRequest s;
    s.op = SendOp::Write;
    s.wr_id = 8;
    s.flags = core::kSignaled;
    s.sges = {&sge, 1};
    s.rkey = fresh.key;
    s.remote_address = fresh.iova;
    if (!a_->post_send(*qa_, s).ok()) problem("post_send refused after RESET");
    if (!world_.run_until_quiet(seconds(1))) problem("not idle after RESET");
    core::Completion c;
    if (cq_a_->poll(&c, 1) != 1 || c.wr_id != 8 || c.status != WcStatus::Success) {
      problem("not usable again after RESET");
    }
    if (!std::ranges::equal(fresh.at(0, 100), ra_.at(0, 100))) problem("wrong bytes after RESET");
  }

  World world_;
  Report report_;
  Violation violation_{};
  bool lossy_ = false;
  const bool in_memory_;
  Host *a_ = nullptr, *b_ = nullptr;
  core::CompletionQueue *cq_a_ = nullptr, *cq_b_ = nullptr;
  core::QueuePair *qa_ = nullptr, *qb_ = nullptr, *neighbour_a_ = nullptr, *neighbour_b_ = nullptr;
  Region ra_, rb_, read_only_, behind_window_;
  uint32_t window_key_ = 0;
  ConnectionShape shape_;
  Ledger sent_, received_, neighbour_;
  size_t culprit_ = 0;
  uint64_t next_wr_id_ = 100;
  bool responder_exists_ = true;
  bool requester_exists_ = true;
};

}  // namespace

RunResult run_broken(uint64_t seed) { return BrokenRun(seed).run(); }

}  // namespace verbena::sim
