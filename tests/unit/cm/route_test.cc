// The process that a MAD is for.
#include "cm/route.h"

#include "tests/unit/cm/agent_support.h"

namespace verbena::cm {
namespace {

class RouteTest : public AgentTest {};

TEST_F(RouteTest, RoutesRequestsByServiceAndOthersBySlot) {
  const auto route = [](const auto& message) {
    Mad mad;
    message.store(mad);
    return route_of(mad);
  };
  EXPECT_EQ(route(peer_req()).kind, Route::Kind::Service);
  EXPECT_EQ(route(peer_req()).service_id, kService);
  SidrReq request;
  request.service_id = 77;
  EXPECT_EQ(route(request).kind, Route::Kind::Service);
  EXPECT_EQ(route(request).service_id, 77u);
  const uint32_t id = 0x2A000001;
  for (const Route r : {route(peer_rep(id)), route(peer_rtu(id)), route(peer_dreq(id)),
                        route(peer_drep(id)), route(peer_mra(id, About::Req, 1)),
                        route(peer_rej(id, RejectReason::Consumer, About::Req))}) {
    EXPECT_EQ(r.kind, Route::Kind::Slot);
    EXPECT_EQ(r.slot, 0x2A);
  }
  SidrRep reply;
  reply.request_id = id;
  EXPECT_EQ(route(reply).slot, 0x2A);
  EXPECT_EQ(route(peer_rej(0, RejectReason::Timeout, About::Other)).kind,
            Route::Kind::AllProcesses);
  EXPECT_EQ(route_of({}).kind, Route::Kind::None);
}

}  // namespace
}  // namespace verbena::cm
