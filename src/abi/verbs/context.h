// The functions that header inlines call through a context's tables rather than by symbol.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include "base/result.h"

namespace verbena::abi {

struct CompletionChannel;
struct Context;
struct Cq;
struct Device;
struct Dm;
struct Pd;

int poll_cq(ibv_cq* cq, int num_entries, ibv_wc* wc);
int req_notify_cq(ibv_cq* cq, int solicited_only);
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type);
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind);
int dealloc_mw(ibv_mw* mw);
int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t attr_bytes);
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t attr_bytes);
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr);
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr);
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init);
int get_srq_num(ibv_srq* srq, uint32_t* number);
ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* init);
int close_xrcd(ibv_xrcd* xrcd);
ibv_mr* alloc_null_mr(ibv_pd* pd);
ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attr);
int free_dm(ibv_dm* dm);
ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, uint64_t offset, size_t length, unsigned access);
int modify_qp_rate_limit(ibv_qp* qp, ibv_qp_rate_limit_attr* attr);
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr);
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attr);
int query_rt_values(ibv_context* context, ibv_values_ex* values);
ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* init);
int dealloc_td(ibv_td* td);
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr);
ibv_counters* create_counters(ibv_context* context, ibv_counters_init_attr* init);
int destroy_counters(ibv_counters* counters);
int attach_counters_point_flow(ibv_counters* counters, ibv_counter_attach_attr* attr,
                               ibv_flow* flow);
int read_counters(ibv_counters* counters, uint64_t* values, uint32_t count, uint32_t flags);
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count);

// Registers a channel, so that the child of a fork closes its copy.
void watch_channel(Context& context, CompletionChannel* channel);
void unwatch_channel(Context& context, CompletionChannel* channel);

// Opening and importing. The context takes `command_fd`; -1: a new one.
Result<ibv_context*> open_context(Device* device, int command_fd);
inline constexpr const char* kCommandFileName = "verbena-device";
// The device that a context of this process has open with this command file, or null.
Device* device_of_command_file(ino_t file);
void list_pd(Context& context, Pd* pd);
void unlist_pd(Context& context, Pd* pd);
void list_dm(Context& context, Dm* dm);
void unlist_dm(Context& context, Dm* dm);
// The object with `handle` of a context with the same command file, with one more user; null if
// there is none.
Pd* use_pd(const Context& context, uint32_t handle);
Dm* use_dm(const Context& context, uint32_t handle);

struct CqOptions {
  bool single_threaded = false;
  bool ignore_overrun = false;
  Pd* domain = nullptr;  // a parent domain
};
Result<Cq*> create_cq(Context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int comp_vector, const CqOptions& options);

}  // namespace verbena::abi
