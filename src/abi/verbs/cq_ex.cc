// Extended completion queues: polled one completion at a time, and read field by field. They are
// the same objects as plain ones; a program may use ibv_poll_cq on the same queue.
#include <arpa/inet.h>
#include <time.h>

#include <mutex>

#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/narrate.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

constexpr uint64_t kKnownFields = IBV_CREATE_CQ_SUP_WC_FLAGS;
constexpr uint64_t kNoFields = IBV_WC_EX_WITH_TM_INFO;  // tag matching is not supported
constexpr uint32_t kKnownFlags =
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;

Cq& cq_of(ibv_cq_ex* cq) { return *static_cast<Cq*>(cq); }
const core::Completion& current(ibv_cq_ex* cq) { return cq_of(cq).current; }

bool take_one(Cq& cq) {
  if (cq.queue.empty()) return false;
  {
    const std::lock_guard lock(cq.poll_lock);  // ibv_poll_cq may run in another thread
    if (cq.queue.poll(&cq.current, 1) == 0) return false;
  }
  cq.status = static_cast<ibv_wc_status>(cq.current.status);
  cq.wr_id = cq.current.wr_id;
  return true;
}

void end_poll(ibv_cq_ex* public_cq) {
  Cq& cq = cq_of(public_cq);
  if (cq.session.begun()) cq.session.end();
}

int start_poll(ibv_cq_ex* public_cq, ibv_poll_cq_attr* attr) {
  Cq& cq = cq_of(public_cq);
  if (cq.nic->is_abandoned()) [[unlikely]]
    return EIO;
  if (attr != nullptr && attr->comp_mask != 0) {
    return refuse("ibv_start_poll", {EINVAL, "comp_mask has a bit that does not exist"});
  }
  if (cq.session.begun()) return refuse("ibv_start_poll", {EINVAL, "call ibv_end_poll first"});
  cq.session.begin();
  int code = 0;
  if (!take_one(cq)) {
    code = without_exceptions([&] {
      cq.lanes.turn_for_poller();
      return 0;
    });
    if (code == 0 && !take_one(cq)) code = ENOENT;
  }
  if (code != 0) end_poll(&cq);
  return code;
}

int next_poll(ibv_cq_ex* cq) { return take_one(cq_of(cq)) ? 0 : ENOENT; }

ibv_wc_opcode read_opcode(ibv_cq_ex* cq) { return static_cast<ibv_wc_opcode>(current(cq).opcode); }
uint32_t read_vendor_err(ibv_cq_ex* cq) { return current(cq).vendor_error; }
uint32_t read_byte_len(ibv_cq_ex* cq) { return current(cq).byte_count; }
// ibv_wc_read_invalidated_rkey calls this too and expects host order.
__be32 read_imm_data(ibv_cq_ex* cq) {
  const core::Completion& c = current(cq);
  return (c.flags & core::kWcWithImmediate) != 0 ? htonl(c.immediate_or_rkey) : c.immediate_or_rkey;
}
uint32_t read_qp_num(ibv_cq_ex* cq) { return current(cq).qpn.value(); }
uint32_t read_src_qp(ibv_cq_ex* cq) { return current(cq).source_qpn.value(); }
unsigned int read_wc_flags(ibv_cq_ex* cq) { return current(cq).flags & core::kWcFlags; }
uint32_t read_slid(ibv_cq_ex*) { return 0; }  // there are no LIDs on Ethernet
uint8_t read_sl(ibv_cq_ex* cq) { return network_type(current(cq)); }
uint8_t read_dlid_path_bits(ibv_cq_ex*) { return 0; }
uint16_t read_cvlan(ibv_cq_ex*) { return 0; }     // the kernel removes VLAN tags
uint32_t read_flow_tag(ibv_cq_ex*) { return 0; }  // there is no flow steering to set one
void read_tm_info(ibv_cq_ex*, ibv_wc_tm_info* info) { *info = {}; }
uint64_t read_completion_ts(ibv_cq_ex* cq) { return static_cast<uint64_t>(current(cq).time.ns); }

uint64_t read_completion_wallclock_ns(ibv_cq_ex* cq) {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t wall_ns = int64_t{wall.tv_sec} * 1'000'000'000 + wall.tv_nsec;
  return static_cast<uint64_t>(wall_ns - (runtime::now() - current(cq).time).ns);
}

// Fills every slot, whatever the program requested: the inlines call them unchecked.
void fill_table(ibv_cq_ex& cq) {
  cq.start_poll = start_poll;
  cq.next_poll = next_poll;
  cq.end_poll = end_poll;
  cq.read_opcode = read_opcode;
  cq.read_vendor_err = read_vendor_err;
  cq.read_byte_len = read_byte_len;
  cq.read_imm_data = read_imm_data;
  cq.read_qp_num = read_qp_num;
  cq.read_src_qp = read_src_qp;
  cq.read_wc_flags = read_wc_flags;
  cq.read_slid = read_slid;
  cq.read_sl = read_sl;
  cq.read_dlid_path_bits = read_dlid_path_bits;
  cq.read_completion_ts = read_completion_ts;
  cq.read_cvlan = read_cvlan;
  cq.read_flow_tag = read_flow_tag;
  cq.read_tm_info = read_tm_info;
  cq.read_completion_wallclock_ns = read_completion_wallclock_ns;
}

Status check(const Context* context, const ibv_cq_init_attr_ex& attr) {
  if ((attr.comp_mask & ~uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD}) != 0) {
    return Error{EINVAL, "comp_mask has a bit that does not exist"};
  }
  if ((attr.wc_flags & ~kKnownFields) != 0 || (attr.wc_flags & kNoFields) != 0) {
    return Error{EOPNOTSUPP, "wc_flags names a field that completions do not have"};
  }
  if ((attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 && (attr.flags & ~kKnownFlags) != 0) {
    return Error{EOPNOTSUPP, "unknown creation flag"};
  }
  if ((attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0) {
    if (attr.parent_domain == nullptr || !from(attr.parent_domain)->is_parent()) {
      return Error{EINVAL, "parent_domain must come from ibv_alloc_parent_domain"};
    }
    if (attr.parent_domain->context != &context->context) {
      return Error{EINVAL, "the parent domain belongs to another context"};
    }
  }
  return {};
}

Result<ibv_cq_ex*> create(Context* context, const ibv_cq_init_attr_ex& attr) {
  const Status checked = check(context, attr);
  if (!checked.ok()) return checked.error();
  CqOptions options;
  if ((attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0) {
    options.single_threaded = (attr.flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0;
    options.ignore_overrun = (attr.flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0;
  }
  if ((attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0) {
    options.domain = from(attr.parent_domain);
    options.single_threaded |= options.domain->td != nullptr;
  }
  if (attr.cqe > INT32_MAX) return Error{EINVAL, "a completion queue has at most max_cqe entries"};
  auto made = create_cq(context, static_cast<int>(attr.cqe), attr.cq_context, attr.channel,
                        static_cast<int>(attr.comp_vector), options);
  if (!made.ok()) return made.error();
  fill_table(*made.value());
  if (narrating()) narrate_calls(*made.value());
  return made.value();
}

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) {
  return object_of<ibv_cq_ex>("ibv_create_cq_ex", [&] { return create(from(context), *attr); });
}

// Moderation lets a NIC delay events to save interrupts. Here an event costs nothing until a
// program waits for it, so none is delayed. That satisfies any count and period.
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attr) {
  return status_of("ibv_modify_cq", [&]() -> Status {
    if (from(cq)->nic->is_abandoned()) return kDead;
    if ((attr->attr_mask & ~uint32_t{IBV_CQ_ATTR_MODERATE}) != 0) {
      return Error{EINVAL, "attr_mask has a bit that does not exist"};
    }
    return {};
  });
}

}  // namespace verbena::abi
