// Process: what the lanes of a simulated process share: memory, the registry of its keys, and the
// barrier by which a call that withdraws a key waits for lookups. A lane is a Host with a slot of
// its own; most processes have one.
//
// The simulator has one thread, so a call cannot wait for a lane that is in a turn. What a program
// does after the wait is put off until no lane is in a turn (after_lookups). The registry continues
// at once, so a program registers nothing while a lane is in a turn. Other lanes take turns while a
// call waits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/memory_registry.h"
#include "sim/arena.h"
#include "sim/network.h"

namespace verbena::sim {

class Host;
class World;

// How a peer would use a key. The process checks thereby whether a lane still finds it.
struct KeyUse {
  uint32_t key = 0;
  uint64_t address = 0;
  wire::Qpn qpn{};  // the queue pair of a type 2 window

  bool operator==(const KeyUse&) const = default;
};

class Process final : public core::LookupBarrier {
 public:
  // `address`: the host whose GID all lanes have.
  Process(World& world, HostId address, uint64_t secret);

  HostId address() const { return address_; }
  Arena& arena() { return arena_; }
  core::MemoryRegistry& memory() { return memory_; }
  void add_lane(Host& lane) { lanes_.push_back(&lane); }
  const std::vector<Host*>& lanes() const { return lanes_; }
  // Whether some lane's engine finds the key.
  bool finds(const KeyUse& use) const;

  // --- withdrawals -------------------------------------------------------------------------------
  // `call` withdraws the key. If it succeeds, it must have waited for lookups after the last moment
  // at which a lane could find the key. `is_back`: at the end the key is valid again.
  Status withdraw(const KeyUse& use, const std::function<Status()>& call, bool is_back = false);
  Status remove_region(uint32_t key);
  // A work request that binds the bound type 1 window of this key again was posted, and has
  // completed. An engine must have waited for lookups in between.
  void rebind_posted(const KeyUse& use) { rebinds_.push_back({use}); }
  void rebind_completed(const KeyUse& use, bool executed);
  // Runs `action` when all turns have ended that lanes are in now: at once if there is none.
  void after_lookups(std::function<void()> action);
  void await_lookups(const core::MemoryView* caller) override;

  // A lane is in a call into its engine. Its lookups are valid until the call ends.
  class Call {
   public:
    Call(Process& process, const Host& lane);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Process& process_;
  };
  // Numbers all calls of lanes, and the moments between them.
  uint64_t next_moment() { return ++moment_; }
  // When the present call of a lane began.
  uint64_t call_began() const { return calls_.back().began; }

  // Turns of other lanes while a call waited for lookups.
  uint64_t turns_in_waits() const { return turns_in_waits_; }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  struct Active {
    const Host* lane;
    uint64_t began;
  };
  struct Waiting {
    KeyUse use;
    bool has_waited = false;
  };

  bool is_in_call(const Host& lane) const;
  void check_rebind();

  World& world_;
  HostId address_;
  Arena arena_;
  core::MemoryRegistry memory_;
  std::vector<Host*> lanes_;
  std::vector<Active> calls_;     // a call of a lane may contain calls of others
  std::vector<Waiting> waiting_;  // calls that withdraw a key; the last one is the innermost
  std::vector<Waiting> rebinds_;
  std::vector<std::function<void()>> put_off_;
  uint64_t moment_ = 0;
  uint64_t turns_in_waits_ = 0;
  std::vector<std::string> problems_;
};

}  // namespace verbena::sim
