// The private version nodes of newer rdma-core releases. Their drivers import the same functions
// under another node, whose number changes with the private interface. Our functions do nothing
// under any of them.
#pragma once

// Defines `name@IBVERBS_PRIVATE_node` for private_`name` of the same file. A plain `name` would
// conflict, because the linker takes it for one of the versions.
#define VERBENA_IN_NODE(name, node, at)                                                          \
  extern "C" __attribute__((visibility("default"),                                               \
                            alias("private_" #name))) decltype(private_##name) name##_in_##node; \
  __asm__(".symver " #name "_in_" #node ", " #name at "IBVERBS_PRIVATE_" #node);

// For the node that had it first, which is the default, and all later ones.
#define VERBENA_SINCE_34(name)    \
  VERBENA_IN_NODE(name, 34, "@@") \
  VERBENA_IN_NODE(name, 57, "@")  \
  VERBENA_IN_NODE(name, 59, "@")  \
  VERBENA_IN_NODE(name, 64, "@")  \
  VERBENA_IN_NODE(name, 65, "@")
#define VERBENA_SINCE_59(name)    \
  VERBENA_IN_NODE(name, 59, "@@") \
  VERBENA_IN_NODE(name, 64, "@")  \
  VERBENA_IN_NODE(name, 65, "@")
#define VERBENA_SINCE_64(name)    \
  VERBENA_IN_NODE(name, 64, "@@") \
  VERBENA_IN_NODE(name, 65, "@")
