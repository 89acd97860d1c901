#!/bin/bash
# Threads of one process with a queue pair and a completion queue each: every operation, created by the main thread or
# by each thread, and as many processes instead. `make bench` measures the speed.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
enter_namespace "$@"
[ -x "$build/thread_load" ] || fail "$build/thread_load is not built"

load() { # OPTIONS...
  start load "$tool" run -- "$build/thread_load" -d 0.1 "$@"
  finish load 60
  [ "$status" = 0 ] || fail "thread_load $*: exit status $status"
  grep -q '"messages_per_second": [1-9]' "$logs/load" || fail "thread_load $*: no message was transferred"
  note "ok thread_load $*"
}
for operation in write send read; do
  load -o "$operation" -t 4
  load -o "$operation" -t 2 -s 65536 --create-in-threads
done
load -t 2 --peer-polls
load -p 3
load -c -t 2

start wrong "$tool" run -- "$build/thread_load" -o wrong
finish wrong 60
if [ "$status" != 2 ] || ! grep -q 'must be write, send or read' "$logs/wrong"; then
  fail "an unknown operation is not rejected: exit status $status"
fi
nothing_left
pass
