// rc_check: runs every operation of a reliable connection between two processes and checks every
// byte, on both sides. It is a plain verbs program: it runs on Verbena, on Soft-RoCE or on
// hardware, and either side may be any of them.
//
//   g++ -std=c++20 -O2 -Wall -Wextra rc_check/rc_check.cc -libverbs -o rc_check
//   rc_check [options]                  the server: waits for the client
//   rc_check [options] server_address   the client
//
// The two sides synchronize over TCP. Every check runs once in each direction. Steps of a transfer:
//   1. both fill their memory: the side with the data with a message per slot, the side that
//      receives it with background only; both know the expected content of both afterwards
//   2. receives are posted, "ready" is exchanged
//   3. the initiator posts everything at once and awaits its completions; the target awaits its own
//   4. both compare all of their memory (messages, gaps and guards), and exchange the result
// so both sides print the same lines and exit with the same status. A wrong byte fails its check
// and the run continues; a failed completion leaves the queue pair unusable and ends the run.

#include <endian.h>
#include <unistd.h>

#include <cinttypes>
#include <csignal>
#include <cstdio>

#include "checks.h"
#include "errors.h"
#include "link.h"
#include "options.h"
#include "peer.h"

namespace rc_check {
namespace {

bool run(const Options& options) {
  const bool client = !options.server.empty();
  at_step("setting up the device");
  Link link(options, kMemorySize);
  at_step("waiting for the other side");
  Peer peer =
      client ? Peer::connect_to(options.server, options.port) : Peer::wait_for_client(options.port);
  const Hello mine = link.hello(options);
  const Hello other = peer.exchange(mine);
  if (other.magic != mine.magic)
    throw Broken("the other side is another version of rc_check, or none");
  link.connect(other);
  printf("rc_check: %s, path MTU %u, seed %" PRIu64 "\n", link.description().c_str(), link.mtu(),
         uint64_t{be64toh((client ? mine : other).seed)});
  fflush(stdout);
  return Checks(link, peer, mine, other, options).run();
}

}  // namespace
}  // namespace rc_check

int main(int count, char** arguments) {
  using namespace rc_check;
  const Options options = parse_options(count, arguments);
  signal(SIGALRM, on_alarm);
  alarm(options.limit_s);
  try {
    if (options.list) {
      list_gids();
      return 0;
    }
    return run(options) ? 0 : 1;
  } catch (const Broken& e) {
    fprintf(stderr, "rc_check: %s\n", e.what());
    return 1;
  }
}
