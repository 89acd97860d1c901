// The ABI of 2007: the same names with other structures (version node IBVERBS_1.0). No current
// program imports them. They make an old binary fail in its first call instead of at load time or
// inside a function with different structures.
#include <cerrno>

#include "abi/verbs/objects.h"

#undef ibv_query_port
#undef ibv_reg_mr

// Defines `name@version`, which only binaries linked against that version use.
#define OLD_VERSION(type, name, version, result)                                              \
  extern "C" VERBENA_EXPORT __attribute__((symver(#name "@" version))) type old_##name(void); \
  extern "C" type old_##name(void) {                                                          \
    errno = ENOSYS;                                                                           \
    return result;                                                                            \
  }

#define OLD_POINTER(name) OLD_VERSION(void*, name, "IBVERBS_1.0", nullptr)
#define OLD_ERRNO(name) OLD_VERSION(int, name, "IBVERBS_1.0", ENOSYS)
#define OLD_MINUS_ONE(name) OLD_VERSION(int, name, "IBVERBS_1.0", -1)
#define OLD_VOID(name) OLD_VERSION(void, name, "IBVERBS_1.0", void())

OLD_POINTER(ibv_get_device_list)
OLD_VOID(ibv_free_device_list)
OLD_POINTER(ibv_get_device_name)
OLD_VERSION(__be64, ibv_get_device_guid, "IBVERBS_1.0", 0)
OLD_POINTER(ibv_open_device)
OLD_MINUS_ONE(ibv_close_device)
OLD_MINUS_ONE(ibv_get_async_event)
OLD_VOID(ibv_ack_async_event)
OLD_ERRNO(ibv_query_device)
OLD_ERRNO(ibv_query_port)
OLD_MINUS_ONE(ibv_query_gid)
OLD_MINUS_ONE(ibv_query_pkey)
OLD_POINTER(ibv_alloc_pd)
OLD_ERRNO(ibv_dealloc_pd)
OLD_POINTER(ibv_reg_mr)
OLD_ERRNO(ibv_dereg_mr)
OLD_POINTER(ibv_create_cq)
OLD_ERRNO(ibv_resize_cq)
OLD_ERRNO(ibv_destroy_cq)
OLD_MINUS_ONE(ibv_get_cq_event)
OLD_VOID(ibv_ack_cq_events)
OLD_POINTER(ibv_create_srq)
OLD_ERRNO(ibv_modify_srq)
OLD_ERRNO(ibv_query_srq)
OLD_ERRNO(ibv_destroy_srq)
OLD_POINTER(ibv_create_qp)
OLD_ERRNO(ibv_query_qp)
OLD_ERRNO(ibv_modify_qp)
OLD_ERRNO(ibv_destroy_qp)
OLD_POINTER(ibv_create_ah)
OLD_ERRNO(ibv_destroy_ah)
OLD_ERRNO(ibv_attach_mcast)
OLD_ERRNO(ibv_detach_mcast)

// Drivers of that time registered themselves with this function; it does nothing.
OLD_VERSION(void, ibv_register_driver, "IBVERBS_1.1", void())
