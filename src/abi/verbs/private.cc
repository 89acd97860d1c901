// The version nodes IBVERBS_PRIVATE_*: the functions that rdma-core's hardware drivers (libmlx5,
// libmlx4, libefa, libmana) import. Programs link against those drivers, and the loader needs every
// symbol. Without hardware hardly any of them is called. The functions take no arguments here
// because they read none.
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "abi/verbs/objects.h"
#include "abi/verbs/private_nodes.h"
#include "runtime/log.h"

#define DEFINE_ERRNO(name)                  \
  extern "C" VERBENA_EXPORT int name(void); \
  extern "C" int name(void) {               \
    errno = EOPNOTSUPP;                     \
    return EOPNOTSUPP;                      \
  }
#define DEFINE_POINTER(name)                  \
  extern "C" VERBENA_EXPORT void* name(void); \
  extern "C" void* name(void) {               \
    errno = EOPNOTSUPP;                       \
    return nullptr;                           \
  }
#define DEFINE_VOID(name)                    \
  extern "C" VERBENA_EXPORT void name(void); \
  extern "C" void name(void) {}

#define PRIVATE_ERRNO(name) DEFINE_ERRNO(private_##name) VERBENA_SINCE_34(name)
#define PRIVATE_POINTER(name) DEFINE_POINTER(private_##name) VERBENA_SINCE_34(name)
#define PRIVATE_VOID(name) DEFINE_VOID(private_##name) VERBENA_SINCE_34(name)

// Called by the drivers' constructors, before main: must do nothing.
DEFINE_VOID(verbs_register_driver_34)
DEFINE_VOID(verbs_register_driver_57)
DEFINE_VOID(verbs_register_driver_59)
DEFINE_VOID(verbs_register_driver_64)
DEFINE_VOID(verbs_register_driver_65)

PRIVATE_VOID(verbs_init_cq)
PRIVATE_VOID(verbs_set_ops)
PRIVATE_VOID(verbs_uninit_context)
PRIVATE_POINTER(verbs_open_device)
PRIVATE_POINTER(_verbs_init_and_alloc_context)
PRIVATE_ERRNO(execute_ioctl)

PRIVATE_ERRNO(ibv_cmd_advise_mr)
PRIVATE_ERRNO(ibv_cmd_alloc_dm)
PRIVATE_ERRNO(ibv_cmd_alloc_mw)
PRIVATE_ERRNO(ibv_cmd_alloc_pd)
PRIVATE_ERRNO(ibv_cmd_attach_mcast)
PRIVATE_ERRNO(ibv_cmd_close_xrcd)
PRIVATE_ERRNO(ibv_cmd_create_ah)
PRIVATE_ERRNO(ibv_cmd_create_counters)
PRIVATE_ERRNO(ibv_cmd_create_cq)
PRIVATE_ERRNO(ibv_cmd_create_cq_ex)
PRIVATE_ERRNO(ibv_cmd_create_flow)
PRIVATE_ERRNO(ibv_cmd_create_flow_action_esp)
PRIVATE_ERRNO(ibv_cmd_create_qp)
PRIVATE_ERRNO(ibv_cmd_create_qp_ex)
PRIVATE_ERRNO(ibv_cmd_create_qp_ex2)
PRIVATE_ERRNO(ibv_cmd_create_rwq_ind_table)
PRIVATE_ERRNO(ibv_cmd_create_srq)
PRIVATE_ERRNO(ibv_cmd_create_srq_ex)
PRIVATE_ERRNO(ibv_cmd_create_wq)
PRIVATE_ERRNO(ibv_cmd_dealloc_mw)
PRIVATE_ERRNO(ibv_cmd_dealloc_pd)
PRIVATE_ERRNO(ibv_cmd_dereg_mr)
PRIVATE_ERRNO(ibv_cmd_destroy_ah)
PRIVATE_ERRNO(ibv_cmd_destroy_counters)
PRIVATE_ERRNO(ibv_cmd_destroy_cq)
PRIVATE_ERRNO(ibv_cmd_destroy_flow)
PRIVATE_ERRNO(ibv_cmd_destroy_flow_action)
PRIVATE_ERRNO(ibv_cmd_destroy_qp)
PRIVATE_ERRNO(ibv_cmd_destroy_rwq_ind_table)
PRIVATE_ERRNO(ibv_cmd_destroy_srq)
PRIVATE_ERRNO(ibv_cmd_destroy_wq)
PRIVATE_ERRNO(ibv_cmd_detach_mcast)
PRIVATE_ERRNO(ibv_cmd_free_dm)
PRIVATE_ERRNO(ibv_cmd_get_context)
PRIVATE_ERRNO(ibv_cmd_modify_cq)
PRIVATE_ERRNO(ibv_cmd_modify_flow_action_esp)
PRIVATE_ERRNO(ibv_cmd_modify_qp)
PRIVATE_ERRNO(ibv_cmd_modify_qp_ex)
PRIVATE_ERRNO(ibv_cmd_modify_srq)
PRIVATE_ERRNO(ibv_cmd_modify_wq)
PRIVATE_ERRNO(ibv_cmd_open_qp)
PRIVATE_ERRNO(ibv_cmd_open_xrcd)
PRIVATE_ERRNO(ibv_cmd_post_recv)
PRIVATE_ERRNO(ibv_cmd_post_send)
PRIVATE_ERRNO(ibv_cmd_post_srq_recv)
PRIVATE_ERRNO(ibv_cmd_query_context)
PRIVATE_ERRNO(ibv_cmd_query_device_any)
PRIVATE_ERRNO(ibv_cmd_query_mr)
PRIVATE_ERRNO(ibv_cmd_query_port)
PRIVATE_ERRNO(ibv_cmd_query_qp)
PRIVATE_ERRNO(ibv_cmd_query_srq)
PRIVATE_ERRNO(ibv_cmd_read_counters)
PRIVATE_ERRNO(ibv_cmd_reg_dm_mr)
PRIVATE_ERRNO(ibv_cmd_reg_dmabuf_mr)
PRIVATE_ERRNO(ibv_cmd_reg_mr)
PRIVATE_ERRNO(ibv_cmd_req_notify_cq)
PRIVATE_ERRNO(ibv_cmd_rereg_mr)
PRIVATE_ERRNO(ibv_cmd_resize_cq)

// Added to a node after its first release.
PRIVATE_ERRNO(ibv_cmd_create_cq_ex2)
DEFINE_ERRNO(private_ibv_cmd_alloc_dmah)
VERBENA_SINCE_59(ibv_cmd_alloc_dmah)
DEFINE_ERRNO(private_ibv_cmd_free_dmah)
VERBENA_SINCE_59(ibv_cmd_free_dmah)
DEFINE_ERRNO(private_ibv_cmd_reg_mr_ex)
VERBENA_SINCE_59(ibv_cmd_reg_mr_ex)
DEFINE_ERRNO(private_ibv_cmd_query_port_speed)
VERBENA_SINCE_59(ibv_cmd_query_port_speed)
DEFINE_POINTER(private_ibv_dmabuf_heap_alloc)
VERBENA_SINCE_64(ibv_dmabuf_heap_alloc)
DEFINE_VOID(private_ibv_dmabuf_heap_free)
VERBENA_SINCE_64(ibv_dmabuf_heap_free)
DEFINE_VOID(private_ibv_dmabuf_heap_destroy)
VERBENA_SINCE_64(ibv_dmabuf_heap_destroy)
DEFINE_POINTER(private_ibv_dmabuf_heap_cc_shared_init)
VERBENA_SINCE_64(ibv_dmabuf_heap_cc_shared_init)
DEFINE_ERRNO(ibv_cmd_create_comp_cntr)
DEFINE_ERRNO(ibv_cmd_destroy_comp_cntr)
DEFINE_ERRNO(ibv_cmd_inc_comp_cntr)
DEFINE_ERRNO(ibv_cmd_inc_err_comp_cntr)
DEFINE_ERRNO(ibv_cmd_qp_attach_comp_cntr)
DEFINE_ERRNO(ibv_cmd_query_comp_cntr_caps)
DEFINE_ERRNO(ibv_cmd_read_comp_cntr)
DEFINE_ERRNO(ibv_cmd_read_err_comp_cntr)
DEFINE_ERRNO(ibv_cmd_set_comp_cntr)
DEFINE_ERRNO(ibv_cmd_set_err_comp_cntr)

extern "C" {

// Returns a descriptor: negative is failure.
int private_ibv_cmd_export_dmabuf_fd(void*) {
  errno = EOPNOTSUPP;
  return -1;
}

// Whether objects may be destroyed although their device was removed; drivers read it.
extern bool private_verbs_allow_disassociate_destroy;
bool private_verbs_allow_disassociate_destroy = false;

// Returns a number of attributes, not an errno.
unsigned int private___ioctl_final_num_attrs(unsigned int, void*) { return 0; }

// Returns a number of completions: negative is failure.
int private_ibv_cmd_poll_cq(void*, int, void*) {
  errno = EOPNOTSUPP;
  return -1;
}

// Returns a number of bytes: our devices have no such files.
int private_ibv_read_ibdev_sysfs_file(char*, size_t, void*, const char*, ...) {
  errno = ENOENT;
  return -1;
}

// Drivers log through this function. Their messages, about missing hardware, are for debugging
// only.
void private___verbs_log(void*, uint32_t, const char* format, ...) {
  if (!verbena::runtime::log_enabled(verbena::runtime::LogLevel::Debug)) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  verbena::runtime::log(verbena::runtime::LogLevel::Debug, "driver: %s", text);
}

}  // extern "C"

VERBENA_SINCE_59(ibv_cmd_export_dmabuf_fd)
VERBENA_SINCE_34(verbs_allow_disassociate_destroy)
VERBENA_SINCE_34(__ioctl_final_num_attrs)
VERBENA_SINCE_34(ibv_cmd_poll_cq)
VERBENA_SINCE_34(ibv_read_ibdev_sysfs_file)
VERBENA_SINCE_34(__verbs_log)
