#!/bin/bash
# One-sided access: a WRITE or READ between processes of one host does not need the CPU of the target. It completes
# while the target is stopped, at every size, one at a time or in a deep queue. Earlier requests are not overtaken,
# deregistered memory is not changed, two processes that write to each other in turn are never blocked, and packets are
# used if the kernel forbids one-sided access.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need g++
enter_namespace "$@"

g++ -std=c++20 -O1 -I "$root" "$root/tests/programs/one_sided.cc" -libverbs -o "$work/one_sided" 2>"$logs/g++" ||
  skip "one_sided.cc does not compile: are the verbs headers installed?"
for what in sleeping polling order deregistered killed spinning denied; do
  start "$what" "$tool" run --log info -- "$work/one_sided" verbena_lo "$what"
  finish "$what" 60
  grep -q '^ok' "$logs/$what" || fail "$what"
  note "ok $what"
done
grep -q 'denies access to the memory' "$logs/denied" || fail "that the kernel forbids it is not reported"
pass
