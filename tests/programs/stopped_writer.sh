#!/bin/bash
# An initiator that is stopped during a direct copy does not block the target: the target deregisters the memory,
# destroys the queue pair and modifies others within seconds, and no byte changes after that.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need g++
enter_namespace "$@"

g++ -std=c++20 -O1 -I "$root" "$root/tests/programs/stopped_writer.cc" -libverbs -o "$work/stopped_writer" 2>"$logs/g++" ||
  skip "stopped_writer.cc does not compile: are the verbs headers installed?"
start stopped "$tool" run --log info -- "$work/stopped_writer" verbena_lo
finish stopped 120
grep -q '^ok' "$logs/stopped" || fail "exit status $status"
if grep -q 'is still copying' "$logs/stopped"; then fail "the target waited for a stopped process"; fi
pass
