#!/bin/bash
# A WRITE or READ between processes of one host needs the other process's memory, not its CPU: it completes
# while that one is stopped, at every size, alone or in a deep queue; what was posted before is not overtaken, memory
# that was taken back is not touched, two that write to each other in turn are never held up, and where the kernel forbids
# it packets do.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need g++
enter_namespace "$@"

g++ -std=c++20 -O1 -I "$root" "$root/tests/programs/one_sided.cc" -libverbs -o "$work/one_sided" 2>"$logs/g++" ||
  skip "one_sided.cc does not compile: are the verbs headers installed?"
for what in sleeping polling order withdrawn killed volley denied; do
  start "$what" "$tool" run --log info -- "$work/one_sided" verbena_lo "$what"
  finish "$what" 60
  grep -q '^ok' "$logs/$what" || fail "$what"
  note "ok $what"
done
grep -q 'does not let us reach' "$logs/denied" || fail "that the kernel forbids it is not said"
pass
