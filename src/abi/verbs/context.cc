// Opens and closes devices, fills the tables that header inlines call through, and handles fork for
// open contexts.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "abi/verbs/context.h"
#include "abi/verbs/device_table.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/memory_region.h"
#include "abi/verbs/narrate.h"
#include "abi/verbs/objects.h"
#include "runtime/config.h"
#include "runtime/process.h"

#undef ibv_query_port

namespace verbena::abi {
namespace {

// All open contexts, for the child of a fork. Never destroyed.
struct OpenContexts {
  std::mutex mutex;
  std::vector<Context*> contexts;
};

OpenContexts& open_contexts() {
  static auto& instance = *new OpenContexts;
  return instance;
}

void before_fork() {
  (void)runtime::config();  // a first read in another thread completes before the fork
  lock_device_table();
  open_contexts().mutex.lock();
}

void in_parent() {
  open_contexts().mutex.unlock();
  unlock_device_table();
}

// The runtime's handler, which runs before, has closed the descriptors; programs must not use the
// numbers any more. Async-signal-safe, as that handler: the clear() of a vector frees no memory.
void in_child() {
  for (Context* context : open_contexts().contexts) {
    context->context.async_fd = context->context.cmd_fd = -1;
    for (CompletionChannel* channel : context->channels) channel->fd = -1;
    context->channels.clear();
  }
  open_contexts().contexts.clear();
  in_parent();
}

void fill_tables(Context& c) {
  ibv_context_ops& ops = c.context.ops;
  ops._compat_query_device = ibv_query_device;
  ops._compat_query_port = ibv_query_port;
  ops.alloc_mw = alloc_mw;
  ops.bind_mw = bind_mw;
  ops.dealloc_mw = dealloc_mw;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
  ops.post_srq_recv = post_srq_recv;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
  if (narrating()) narrate_calls(ops);
  // The inlines return EOPNOTSUPP for the slots that stay null.
  c.sz = kNewerContextBytes;
  c.query_port = query_port;
  c.query_device_ex = query_device_ex;
  c.create_qp_ex = create_qp_ex;
  c.open_qp = open_qp;
  c.create_srq_ex = create_srq_ex;
  c.get_srq_num = get_srq_num;
  c.open_xrcd = open_xrcd;
  c.close_xrcd = close_xrcd;
  c.advise_mr = advise_mr;
  c.alloc_null_mr = alloc_null_mr;
  c.alloc_dm = alloc_dm;
  c.free_dm = free_dm;
  c.reg_dm_mr = reg_dm_mr;
  c.alloc_dmah = alloc_dmah;
  c.dealloc_dmah = dealloc_dmah;
  c.reg_mr_ex = reg_mr_ex;
  c.dm_export_dmabuf_fd = dm_export_dmabuf_fd;
  c.alloc_buf = alloc_buf;
  c.free_buf = free_buf;
  c.modify_qp_rate_limit = modify_qp_rate_limit;
  c.create_cq_ex = create_cq_ex;
  c.modify_cq = modify_cq;
  c.query_rt_values = query_rt_values;
  c.alloc_td = alloc_td;
  c.dealloc_td = dealloc_td;
  c.alloc_parent_domain = alloc_parent_domain;
  c.create_counters = create_counters;
  c.destroy_counters = destroy_counters;
  c.attach_counters_point_flow = attach_counters_point_flow;
  c.read_counters = read_counters;
  c.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
}

// No command uses this descriptor. But programs pass it around, close() copies of it, and import by
// it: the inode identifies the owner.
Status open_command_file(Context& context, int fd) {
  if (fd < 0) fd = memfd_create(kCommandFileName, MFD_CLOEXEC);
  struct stat file {};
  if (fd < 0 || fstat(fd, &file) != 0) {
    return Error{errno, "cannot create a descriptor (too many open files?)"};
  }
  context.command = os::UniqueFd(fd);
  context.context.cmd_fd = fd;
  context.command_file = file.st_ino;
  return {};
}

// Adds a user under the lock, before the object can be destroyed.
template <typename Object>
Object* use(const Context& context, std::unordered_map<uint32_t, Object*> Context::*list,
            uint32_t handle) {
  const std::lock_guard lock(open_contexts().mutex);
  for (const Context* other : open_contexts().contexts) {
    if (other->command_file != context.command_file) continue;
    const auto found = (other->*list).find(handle);
    if (found == (other->*list).end()) continue;
    found->second->add_user();
    return found->second;
  }
  return nullptr;
}

}  // namespace

Result<ibv_context*> open_context(Device* device, int command_fd) {
  auto context = std::make_unique<Context>();
  context->context.cmd_fd = -1;
  auto nic = runtime::Nic::open(current_info(device));
  if (!nic.ok()) return nic.error();
  context->device = device;
  context->nic = nic.value();
  auto async = runtime::EventChannel::create();
  if (!async.ok()) return async.error();
  context->async.reset(async.value());
  fill_tables(*context);
  ibv_context& c = context->context;
  c.device = &device->device;
  c.async_fd = context->async->fd();
  const Status command = open_command_file(*context, command_fd);
  if (!command.ok()) return command.error();
  c.num_comp_vectors = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  pthread_mutex_init(&c.mutex, nullptr);
  {
    const std::lock_guard lock(open_contexts().mutex);
    open_contexts().contexts.push_back(context.get());
  }
  context->nic->add_listener(context->async.get());
  return &context.release()->context;
}

namespace {

// Installed when the library is loaded, not at its first use. A thread that installs them while
// another thread forks would wait for the fork with the guard of a static variable taken, and the
// child would find that guard taken forever.
[[gnu::constructor]] void install_fork_handlers() {
  runtime::lock_process();  // installs its own handlers first
  runtime::unlock_process();
  pthread_atfork(before_fork, in_parent, in_child);
}

}  // namespace

Device* device_of_command_file(ino_t file) {
  const std::lock_guard lock(open_contexts().mutex);
  for (const Context* context : open_contexts().contexts) {
    if (context->command_file == file) return context->device;
  }
  return nullptr;
}

void list_pd(Context& context, Pd* pd) {
  const std::lock_guard lock(open_contexts().mutex);
  context.pds.emplace(pd->handle, pd);
}

void unlist_pd(Context& context, Pd* pd) {
  const std::lock_guard lock(open_contexts().mutex);
  context.pds.erase(pd->handle);
}

void list_dm(Context& context, Dm* dm) {
  const std::lock_guard lock(open_contexts().mutex);
  context.dms.emplace(dm->handle, dm);
}

void unlist_dm(Context& context, Dm* dm) {
  const std::lock_guard lock(open_contexts().mutex);
  context.dms.erase(dm->handle);
}

Pd* use_pd(const Context& context, uint32_t handle) { return use(context, &Context::pds, handle); }

Dm* use_dm(const Context& context, uint32_t handle) { return use(context, &Context::dms, handle); }

void watch_channel(Context& context, CompletionChannel* channel) {
  const std::lock_guard lock(open_contexts().mutex);
  context.channels.push_back(channel);
}

void unwatch_channel(Context& context, CompletionChannel* channel) {
  const std::lock_guard lock(open_contexts().mutex);
  std::erase(context.channels, channel);
}

}  // namespace verbena::abi

using namespace verbena;
using namespace verbena::abi;

extern "C" {

VERBENA_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  return object_of<ibv_context>("ibv_open_device", [&] { return open_context(from(device), -1); });
}

// Remaining objects keep the memory and the Nic until they are destroyed. The program must not use
// the context any more.
VERBENA_EXPORT int ibv_close_device(ibv_context* context) {
  Context* c = from(context);
  {
    const std::lock_guard lock(open_contexts().mutex);
    std::erase(open_contexts().contexts, c);
  }
  if (!c->nic->is_abandoned()) {
    c->nic->remove_listener(c->async.get());
    const int objects = c->users.load() - 1;
    if (objects > 0) {
      runtime::log(runtime::LogLevel::Info,
                   "ibv_close_device: %s closed while %d of its objects still exist",
                   ibv_get_device_name(context->device), objects);
    }
  }
  c->drop_user();
  return 0;
}

}  // extern "C"
