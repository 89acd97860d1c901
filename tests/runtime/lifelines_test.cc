// That the end of another process is noticed, with real processes.
#include "datapath/udp/lifelines.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace verbena::datapath {
namespace {

using Slots = std::vector<uint8_t>;

// Numbers that no Nic of these tests has: those begin at their process's own place.
constexpr uint8_t kOurs = 251;
constexpr uint8_t kOther = 252;

Slots departed_within(Lifelines& lines, int ms) {
  pollfd p{lines.fd(), POLLIN, 0};
  for (; ms > 0; ms -= 10) {
    if (poll(&p, 1, 10) != 1) continue;
    if (Slots slots = lines.take_departed(); !slots.empty()) return slots;
  }
  return {};
}

// Another process with lifelines of its own. It watches us if told to, and then waits to be killed.
class Other {
 public:
  explicit Other(bool watches) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      Lifelines lines(kOther);
      const char told = !watches || lines.watch(kOurs) ? 'y' : 'n';
      (void)!write(ready[1], &told, 1);
      for (;;) pause();
    }
    char told = 0;
    EXPECT_EQ(read(ready[0], &told, 1), 1);
    EXPECT_EQ(told, 'y');
    close(ready[0]);
    close(ready[1]);
  }
  ~Other() { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST(Lifelines, WhoWatchesIsTold) {
  Other other(false);
  Lifelines ours(kOurs);
  EXPECT_TRUE(ours.watch(kOther));
  EXPECT_TRUE(ours.watch(kOther));
  EXPECT_EQ(departed_within(ours, 50), Slots{});
  other.end();
  EXPECT_EQ(departed_within(ours, 10'000), Slots{kOther});
  EXPECT_EQ(departed_within(ours, 50), Slots{});
}

TEST(Lifelines, WhoIsWatchedIsTold) {
  Lifelines ours(kOurs);
  Other other(true);
  EXPECT_EQ(departed_within(ours, 50), Slots{});
  other.end();
  EXPECT_EQ(departed_within(ours, 10'000), Slots{kOther});
}

TEST(Lifelines, AProcessThatIsGoneCannotBeWatched) {
  Lifelines ours(kOurs);
  EXPECT_FALSE(ours.watch(kOther));
  EXPECT_TRUE(ours.watch(kOurs)) << "oneself is there";
}

TEST(Lifelines, OneThatStaysSilentIsNobody) {
  Lifelines ours(kOurs);
  Slots none;
  {
    Lifelines caller(0);  // says slot 0
    EXPECT_TRUE(caller.watch(kOurs));
    EXPECT_EQ(departed_within(ours, 20), none);
  }
  EXPECT_EQ(departed_within(ours, 50), none);
}

}  // namespace
}  // namespace verbena::datapath
