// Thread domains and parent domains. A thread domain promises that one thread at a time uses its
// objects, which saves their locks. A parent domain is a protection domain with such a promise and
// with the program's own allocator.
#include <memory>

#include "abi/verbs/context.h"
#include "abi/verbs/errors.h"
#include "abi/verbs/objects.h"

namespace verbena::abi {
namespace {

Result<ibv_td*> allocate_td(Context* context, const ibv_td_init_attr* init) {
  if (init != nullptr && init->comp_mask != 0) {
    return Error{EINVAL, "comp_mask has a bit that does not exist"};
  }
  auto td = std::make_unique<Td>();
  td->context = &context->context;
  context->add_user();
  return td.release();
}

Status free_td(Td* td) {
  if (td->users.load() != 0) return Error{EBUSY, "parent domains of this thread domain remain"};
  Context* context = from(td->context);
  delete td;
  context->drop_user();
  return {};
}

Status check(Context* context, const ibv_parent_domain_init_attr& attr) {
  constexpr uint32_t kKnown = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
                              IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT | kParentAllowsUnprotected;
  if ((attr.comp_mask & ~kKnown) != 0)
    return Error{EINVAL, "comp_mask has a bit that does not exist"};
  if (attr.pd == nullptr) return Error{EINVAL, "a parent domain needs a protection domain"};
  if (from(attr.pd)->is_parent()) return Error{EINVAL, "pd is a parent domain itself"};
  if (attr.pd->context != &context->context ||
      (attr.td != nullptr && attr.td->context != &context->context)) {
    return Error{EINVAL, "the domains belong to another context"};
  }
  const bool allocators = (attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) != 0;
  if (allocators && (attr.alloc == nullptr || attr.free == nullptr)) {
    return Error{EINVAL, "alloc and free must be given together"};
  }
  return {};
}

Result<ibv_pd*> allocate_parent(Context* context, const ibv_parent_domain_init_attr& attr) {
  const Status checked = check(context, attr);
  if (!checked.ok()) return checked.error();
  auto parent = std::make_unique<Pd>();
  parent->context = &context->context;
  parent->stands_for = from(attr.pd);
  parent->kind = Pd::Kind::Parent;
  parent->id = parent->stands_for->id;
  parent->handle = attr.pd->handle;
  if ((attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) != 0) {
    parent->alloc = attr.alloc;
    parent->free = attr.free;
  }
  if ((attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) != 0) {
    parent->pd_context = attr.pd_context;
  }
  parent->stands_for->add_user();
  if (attr.td != nullptr) {
    parent->td = from(attr.td);
    parent->td->users.fetch_add(1);
  }
  context->add_user();
  return parent.release();
}

}  // namespace

void* Pd::allocate(size_t bytes, size_t alignment) {
  if (alloc == nullptr) return nullptr;
  void* memory = alloc(this, pd_context, bytes, alignment, 0);
  if (memory == nullptr) throw std::bad_alloc();
  return memory == IBV_ALLOCATOR_USE_DEFAULT ? nullptr : memory;
}

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* init) {
  return object_of<ibv_td>("ibv_alloc_td", [&] { return allocate_td(from(context), init); });
}

int dealloc_td(ibv_td* td) {
  return status_of("ibv_dealloc_td", [&] { return free_td(from(td)); });
}

ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr) {
  return object_of<ibv_pd>("ibv_alloc_parent_domain",
                           [&] { return allocate_parent(from(context), *attr); });
}

}  // namespace verbena::abi
