// Whether a user ID is the own user, in user namespaces with different maps. Each case runs in its
// own child. Cases that need missing privileges are skipped.
#include "host/same_user.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace verbena::datapath {
namespace {

constexpr uid_t kOverflow = 65534;
constexpr int kNotPermitted = 77;

// The exit status of the child; 77 if `become` failed.
int in_child(const std::function<bool()>& become, const std::function<bool()>& holds) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(!become() ? kNotPermitted : holds() ? 0 : 1);
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
#define EXPECT_IN_CHILD(become, holds)                               \
  do {                                                               \
    const int result = in_child(become, holds);                      \
    if (result == kNotPermitted) GTEST_SKIP() << "needs privileges"; \
    EXPECT_EQ(result, 0);                                            \
  } while (false)

bool write_file(const std::string& name, const std::string& text) {
  const int fd = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return written;
}
// Enters a user namespace. A process outside writes the map, unless it is empty.
bool enter_namespace(const std::string& map) {
  int entered[2], mapped[2];
  if (::pipe(entered) != 0 || ::pipe(mapped) != 0) return false;
  const std::string file = "/proc/" + std::to_string(::getpid()) + "/uid_map";
  const pid_t helper = ::fork();
  char byte = 0;
  if (helper == 0) {
    const bool done = ::read(entered[0], &byte, 1) == 1 && (map.empty() || write_file(file, map));
    byte = done ? 'y' : 'n';
    (void)!::write(mapped[1], &byte, 1);
    ::_exit(0);
  }
  const bool unshared = ::unshare(CLONE_NEWUSER) == 0;
  (void)!::write(entered[1], &byte, 1);
  const bool done = ::read(mapped[0], &byte, 1) == 1 && byte == 'y';
  ::waitpid(helper, nullptr, 0);
  return unshared && done;
}
bool become_overflow_user() { return ::setresuid(kOverflow, kOverflow, kOverflow) == 0; }
std::string us() { return std::to_string(::geteuid()); }

TEST(SameUser, IsOnlyTheEffectiveUser) {
  EXPECT_TRUE(host::is_own_user(::geteuid()) || ::geteuid() == kOverflow);
  EXPECT_FALSE(host::is_own_user(::geteuid() + 1));
  EXPECT_IN_CHILD([] { return ::setresuid(1234, 4321, 4321) == 0; },
                  [] { return host::is_own_user(4321) && !host::is_own_user(1234); });
}

TEST(SameUser, AcceptsTheOverflowUserIfAllUsersAreMapped) {
  EXPECT_IN_CHILD([] { return become_overflow_user(); },
                  [] { return host::is_own_user(kOverflow) && !host::is_own_user(0); });
  EXPECT_IN_CHILD([] { return enter_namespace("0 0 4294967295") && become_overflow_user(); },
                  [] { return host::is_own_user(kOverflow); });
}

TEST(SameUser, RejectsAnUnmappedUser) {
  EXPECT_IN_CHILD([] { return enter_namespace("0 " + us() + " 1"); },
                  [] { return host::is_own_user(0) && !host::is_own_user(kOverflow); });
}

TEST(SameUser, RejectsTheOverflowUserIfSomeUsersAreUnmapped) {
  EXPECT_IN_CHILD([] { return enter_namespace("65534 " + us() + " 1"); },
                  [] { return ::geteuid() == kOverflow && !host::is_own_user(kOverflow); });
  EXPECT_IN_CHILD([] { return enter_namespace(""); },
                  [] { return ::geteuid() == kOverflow && !host::is_own_user(kOverflow); });
  EXPECT_IN_CHILD([] { return enter_namespace("0 0 65535") && become_overflow_user(); },
                  [] { return !host::is_own_user(kOverflow); });
}

}  // namespace
}  // namespace verbena::datapath
