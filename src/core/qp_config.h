// QpConfig: what a queue pair is created with. It does not change afterwards.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace verbena::core {

class CompletionQueue;
class SharedReceiveQueue;

struct QpConfig {
  QpType type = QpType::Rc;
  bool signal_all = false;
  uint32_t pd = 0;
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* receive_cq = nullptr;
  SharedReceiveQueue* srq = nullptr;  // the source of receives; max_recv_* have no effect then
  uint32_t xrc_domain = 0;  // XrcReceive: the domain of the SRQs that messages name; otherwise 0
  uint32_t max_send_wr = 0;
  uint32_t max_recv_wr = 0;
  uint32_t max_send_sge = 0;
  uint32_t max_recv_sge = 0;
  uint32_t max_inline = 0;
};

}  // namespace verbena::core
