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
                                               "RC SEND Only Invalidate",
                                               nullptr,
                                               nullptr,
                                               nullptr,
                                               nullptr,
                                               "RC FLUSH",
                                               "RC ATOMIC WRITE"};
  static constexpr const char* kUcNames[12] = {
      "UC SEND First",       "UC SEND Middle",
      "UC SEND Last",        "UC SEND Last Immediate",
      "UC SEND Only",        "UC SEND Only Immediate",
      "UC RDMA WRITE First", "UC RDMA WRITE Middle",
      "UC RDMA WRITE Last",  "UC RDMA WRITE Last Immediate",
      "UC RDMA WRITE Only",  "UC RDMA WRITE Only Immediate"};
  static constexpr const char* kXrcNames[32] = {"XRC SEND First",
                                                "XRC SEND Middle",
                                                "XRC SEND Last",
                                                "XRC SEND Last Immediate",
                                                "XRC SEND Only",
                                                "XRC SEND Only Immediate",
                                                "XRC RDMA WRITE First",
                                                "XRC RDMA WRITE Middle",
                                                "XRC RDMA WRITE Last",
                                                "XRC RDMA WRITE Last Immediate",
                                                "XRC RDMA WRITE Only",
                                                "XRC RDMA WRITE Only Immediate",
                                                "XRC RDMA READ Request",
                                                "XRC RDMA READ Response First",
                                                "XRC RDMA READ Response Middle",
                                                "XRC RDMA READ Response Last",
                                                "XRC RDMA READ Response Only",
                                                "XRC Acknowledge",
                                                "XRC ATOMIC Acknowledge",
                                                "XRC CmpSwap",
                                                "XRC FetchAdd",
                                                nullptr,
                                                "XRC SEND Last Invalidate",
                                                "XRC SEND Only Invalidate",
                                                nullptr,
                                                nullptr,
                                                nullptr,
                                                nullptr,
                                                "XRC FLUSH",
                                                "XRC ATOMIC WRITE"};
  const char* name = nullptr;
  if (opcode < 32) name = kRcNames[opcode];
  if (opcode >= kUcBase && opcode < kUcBase + 12) name = kUcNames[opcode - kUcBase];
  if (opcode >= kXrcBase && opcode < kXrcBase + 32) name = kXrcNames[opcode - kXrcBase];
  if (opcode == 0x64) name = "UD SEND Only";
  if (opcode == 0x65) name = "UD SEND Only Immediate";
  if (opcode == 0x81) name = "CNP";
  return name != nullptr ? name : "unknown opcode";
}

}  // namespace verbena::wire
