// Tables of invalid calls: each row is one call with one invalid argument and the documented errno.
// After each call all objects must be unchanged and still work.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "tests/abi/datagram_support.h"

namespace verbena::test {

inline constexpr uint32_t kNoSuchBit = 1u << 31;  // in no mask and no set of flags

// Objects that inline functions of the header destroy. Each translation unit has its own copy of
// those functions, so Destroy<> cannot be used.
struct Release {
  void operator()(ibv_xrcd* xrcd) const { EXPECT_EQ(ibv_close_xrcd(xrcd), 0); }
  void operator()(ibv_dm* dm) const { EXPECT_EQ(ibv_free_dm(dm), 0); }
  void operator()(ibv_td* td) const { EXPECT_EQ(ibv_dealloc_td(td), 0); }
  void operator()(ibv_mw* mw) const { EXPECT_EQ(ibv_dealloc_mw(mw), 0); }
  void operator()(ibv_cq_ex* cq) const { EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0); }
};

template <typename T>
using Released = std::unique_ptr<T, Release>;
using SrqPtr = std::unique_ptr<ibv_srq, Destroy<ibv_destroy_srq>>;

struct InvalidCall {
  const char* name;
  int expected;  // errno, or the value that the failed call returns
  std::function<int()> call;
  // Whether the log must state the reason. Inline functions of the header reject some calls before
  // the library is called, and a full queue is no invalid call.
  bool is_logged = true;
};

// The errno of a failed call that creates an object, or 0.
template <typename T>
int code_of(T* made) {
  return made != nullptr ? 0 : errno;
}
// The same for calls that return -1.
inline int code_of_minus_one(int returned) { return returned == -1 ? errno : returned; }

// One object of each kind beside the two connected queue pairs, and some of another context.
class BadInputTest : public LoopbackTest {
 protected:
  void SetUp() override;

  void run(std::initializer_list<InvalidCall> table);
  // All attributes of the objects that can be queried.
  std::string state_of_everything();
  void expect_everything_works();

  QpPtr make_qp(ibv_qp_type type, ibv_srq* srq = nullptr);
  // Uses the ibv_wr_* interface and is connected to itself.
  QpPtr make_builder_qp(ibv_qp_type type, uint64_t operations);
  ibv_ah_attr address();

  ibv_device_attr limits_{};

  // Another context of the same device.
  ContextPtr foreign_;
  PdPtr foreign_pd_;
  ChannelPtr foreign_channel_;
  CqPtr foreign_cq_;
  SrqPtr foreign_srq_;
  Released<ibv_xrcd> foreign_xrcd_;
  Released<ibv_td> foreign_td_;

  PdPtr second_pd_;  // of the same context
  std::vector<uint8_t> second_memory_;
  MrPtr second_mr_;
  MrPtr read_only_;  // b's memory, without any access

  CqPtr cq_;
  Released<ibv_cq_ex> cq_ex_;
  Released<ibv_td> td_;
  PdPtr parent_;
  SrqPtr srq_;  // two receives of one SGE, both posted
  Released<ibv_xrcd> xrcd_;
  SrqPtr xrc_srq_;
  QpPtr fresh_, init_, rtr_;  // RC, in these states
  QpPtr uc_, ud_, on_srq_, xrc_send_, xrc_receive_;
  QpPtr builder_, ud_builder_;
  Released<ibv_dm> dm_;
  MrPtr dm_mr_;
  Released<ibv_mw> window1_, window2_;
  AhPtr ah_, second_ah_;
};

}  // namespace verbena::test
