// UniqueFd: what the child of a fork closes, and what it leaves alone.
#include "os/unique_fd.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <utility>

namespace verbena::os {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

// The number of the first check that failed in a forked child; 0: none.
int first_failure_in_child(const std::function<int()>& checks) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(checks());
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(UniqueFd, ClosesOnlyOwnedDescriptorsInTheChild) {
  const UniqueFd owned(::dup(0));
  UniqueFd other(::dup(0));
  const UniqueFd moved = std::move(other);
  UniqueFd released(::dup(0));
  const int applications = released.release();
  const UniqueFd high(::fcntl(0, F_DUPFD_CLOEXEC, 900));
  const int numbers[] = {owned.get(), moved.get(), high.get()};
  EXPECT_EQ(first_failure_in_child([&] {
              UniqueFd::close_all_in_child();
              for (const int number : numbers)
                if (is_open(number)) return 1;
              return is_open(applications) ? 0 : 2;
            }),
            0);
  EXPECT_TRUE(is_open(owned.get()));
  ::close(applications);
}

TEST(UniqueFd, LeavesReusedNumbersAloneInTheChild) {
  UniqueFd reset(::dup(0));
  UniqueFd assigned(::dup(0));
  UniqueFd released(::dup(0));
  auto destroyed = std::make_unique<UniqueFd>(::dup(0));
  const int numbers[] = {reset.get(), assigned.get(), released.get(), destroyed->get()};
  EXPECT_EQ(first_failure_in_child([&] {
              UniqueFd::close_all_in_child();
              if (reset.valid() || reset.get() != -1) return 1;
              for (const int number : numbers)
                if (::dup2(0, number) != number) return 2;
              reset.reset();
              assigned = UniqueFd();
              destroyed.reset();
              if (released.release() != -1) return 3;
              for (const int number : numbers)
                if (!is_open(number)) return 4;
              return 0;
            }),
            0);
}

TEST(UniqueFd, OwnsDescriptorsThatTheChildOpens) {
  const UniqueFd inherited(::dup(0));
  EXPECT_EQ(first_failure_in_child([&] {
              UniqueFd::close_all_in_child();
              UniqueFd own(::dup(0));
              const int number = own.get();
              if (number < 0 || !is_open(number)) return 1;
              const int grandchild = first_failure_in_child([&] {
                UniqueFd::close_all_in_child();
                return is_open(number) ? 1 : 0;
              });
              if (grandchild != 0) return 2;
              own.reset();
              return is_open(number) ? 3 : 0;
            }),
            0);
}

}  // namespace
}  // namespace verbena::os
