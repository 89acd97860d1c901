// The private version nodes of newer rdma-core releases. Their drivers import the same functions
// under another node, whose number changes with the private interface; ours do nothing under any.
// The version script gives a function its oldest node, these give it the others.
#pragma once

// `name@IBVERBS_PRIVATE_node`, for a symbol defined in the same file.
#define VERBENA_ALSO_IN(name, node)                                                                \
  extern "C" __attribute__((visibility("default"), alias(#name))) decltype(name) name##_in_##node; \
  __asm__(".symver " #name "_in_" #node ", " #name "@IBVERBS_PRIVATE_" #node);

#define VERBENA_SINCE_34(name) \
  VERBENA_ALSO_IN(name, 57)    \
  VERBENA_SINCE_57(name)
#define VERBENA_SINCE_57(name) \
  VERBENA_ALSO_IN(name, 59)    \
  VERBENA_SINCE_59(name)
#define VERBENA_SINCE_59(name) VERBENA_ALSO_IN(name, 64)
