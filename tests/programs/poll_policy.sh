#!/bin/bash
# VERBENA_POLL: a program that waits for completion events sleeps for each of them or, with hybrid, busy-polls. Its
# futex calls show which.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong strace
enter_namespace "$@"
strace -qq -o /dev/null true 2>/dev/null || skip "strace is not permitted"

# The number of sleeps of both processes on their channels for 300 messages each way.
sleeps() { # POLICY
  local traces
  rm -f "$logs"/pair.* "$work"/trace.*
  export VERBENA_POLL=$1
  start_pair pair strace -ff -qq -e trace=futex -o "$work/trace" \
    ibv_rc_pingpong -d verbena_lo -g 0 -c -e -n 300
  finish_pair pair
  unset VERBENA_POLL
  traces=("$work"/trace.*)
  [ -e "${traces[0]}" ] || fail "no trace of futex calls"
  # A value of 2 comes from glibc: a thread waits for a mutex. For a count of 0 grep has exit status 1.
  cat "${traces[@]}" | grep FUTEX_WAIT | grep -vc 'FUTEX_WAIT_PRIVATE, 2,' || true
}
event=$(sleeps event)
hybrid=$(sleeps hybrid:10000)
[ "$event" -ge 100 ] || fail "with event, only $event sleeps for 300 messages each way"
[ "$hybrid" -lt $((event / 4)) ] || fail "with hybrid, $hybrid sleeps; with event $event"

for bad in sometimes hybrid: hybrid:x hybrid:-1 hybrid:10001; do
  VERBENA_POLL=$bad "$tool" run -- ibv_devices >"$logs/devices" 2>&1 || fail "a bad policy ends the program"
  grep -q "VERBENA_POLL=$bad is ignored: use event" "$logs/devices" || fail "VERBENA_POLL=$bad is accepted"
done
nothing_left
pass "asleep $event and $hybrid times"
