// Opcode names, for logs and dumps.
#include "wire/opcode.h"

namespace verbena::wire {

const char* name_of(uint8_t opcode) {
  static constexpr const char* kRcNames[32] = {"RC SEND First",
                                               "RC SEND Middle",
                                               "RC SEND Last",
                                               "RC SEND Last Immediate",
                                               "RC SEND Only",
                                               "RC SEND Only Immediate",
                                               "RC RDMA WRITE First",
                                               "RC RDMA WRITE Middle",
                                               "RC RDMA WRITE Last",
                                               "RC RDMA WRITE Last Immediate",
                                               "RC RDMA WRITE Only",
                                               "RC RDMA WRITE Only Immediate",
                                               "RC RDMA READ Request",
                                               "RC RDMA READ Response First",
                                               "RC RDMA READ Response Middle",
                                               "RC RDMA READ Response Last",
                                               "RC RDMA READ Response Only",
                                               "RC Acknowledge",
                                               "RC ATOMIC Acknowledge",
                                               "RC CmpSwap",
                                               "RC FetchAdd",
                                               nullptr,
                                               "RC SEND Last Invalidate",
                                               "RC SEND Only Invalidate"};
  const char* name = nullptr;
  if (opcode < 32) name = kRcNames[opcode];
  if (opcode == 0x81) name = "CNP";
  return name != nullptr ? name : "unknown opcode";
}

}  // namespace verbena::wire
