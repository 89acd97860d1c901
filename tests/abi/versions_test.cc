// Old and private symbols, looked up by version as by the loader.
#include <dlfcn.h>

#include <cerrno>

#include "tests/abi/loopback_support.h"

namespace verbena::test {
namespace {

template <typename Function>
Function* symbol(const char* name, const char* version) {
  void* found = dlvsym(RTLD_DEFAULT, name, version);
  EXPECT_NE(found, nullptr) << name << "@" << version;
  return reinterpret_cast<Function*>(found);
}

TEST(Versions, TheOldAbiFailsCleanly) {
  int count = 7;
  auto* list = symbol<void*(int*)>("ibv_get_device_list", "IBVERBS_1.0");
  EXPECT_NE(reinterpret_cast<void*>(list),
            dlvsym(RTLD_DEFAULT, "ibv_get_device_list", "IBVERBS_1.1"));
  errno = 0;
  EXPECT_EQ(list(&count), nullptr);
  EXPECT_EQ(errno, ENOSYS);
  EXPECT_EQ(symbol<int(void*, void*)>("ibv_query_device", "IBVERBS_1.0")(nullptr, nullptr), ENOSYS);
  EXPECT_EQ(symbol<int(void*, void*)>("ibv_get_cq_event", "IBVERBS_1.0")(nullptr, nullptr), -1);
  symbol<void(void*, unsigned)>("ibv_ack_cq_events", "IBVERBS_1.0")(nullptr, 1);
  symbol<void(const char*, void*)>("ibv_register_driver", "IBVERBS_1.1")("mlx4", nullptr);
}

TEST(Versions, ThePrivateNodeDoesNothing) {
  constexpr const char* kNode = "IBVERBS_PRIVATE_34";
  symbol<void(const void*)>("verbs_register_driver_34", kNode)(nullptr);
  symbol<void(void*, uint32_t, const char*, ...)>("__verbs_log", kNode)(nullptr, 1, "%s %d\n",
                                                                        "text", 3);
  EXPECT_FALSE(
      *static_cast<bool*>(dlvsym(RTLD_DEFAULT, "verbs_allow_disassociate_destroy", kNode)));
  EXPECT_EQ(symbol<int(void*)>("ibv_cmd_dealloc_pd", kNode)(nullptr), EOPNOTSUPP);
  EXPECT_EQ(symbol<void*(void*, void*)>("verbs_open_device", kNode)(nullptr, nullptr), nullptr);
  EXPECT_EQ(symbol<void*(void*, int, void*, void*, uint32_t)>(
                "_verbs_init_and_alloc_context", kNode)(nullptr, 0, nullptr, nullptr, 0),
            nullptr);
  EXPECT_LT(symbol<int(void*, int, void*)>("ibv_cmd_poll_cq", kNode)(nullptr, 1, nullptr), 0);
}

// The symbol behind the macro. Programs from before 2018 call it with the smaller structure.
TEST(Versions, QueryPortSymbolWritesTheOldStructure) {
  ContextPtr context = open_loopback();
  ASSERT_NE(context, nullptr);
  ibv_port_attr port;
  std::memset(&port, 0xCC, sizeof port);
  auto* query = symbol<int(ibv_context*, uint8_t, void*)>("ibv_query_port", "IBVERBS_1.1");
  ASSERT_EQ(query(context.get(), 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.port_cap_flags2, 0xCCCC);  // behind the old structure
  EXPECT_EQ(query(context.get(), 2, &port), EINVAL);
}

}  // namespace
}  // namespace verbena::test
