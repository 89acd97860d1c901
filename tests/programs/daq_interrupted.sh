#!/bin/bash
# Interrupted detector readout: it ends in every phase and leaves no process and no open queue pair of a board.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=daq_lib.sh
. "$(dirname "$0")/daq_lib.sh"
need python3
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "needs its own network namespace"

# --- the curve: it starts no board for the remaining points
start sweep "$tool" daq-sweep --sizes 8 --depths 1,32768 --seconds 1 --output "$work/curve"
await_line "$logs/sweep" 'Gb/s' 20 || fail "daq-sweep does not begin"
kill -TERM "${pids[sweep]}"
finish sweep 10
[ "$status" = 1 ] || fail "daq-sweep that is interrupted: exit status $status"
note "ok daq-sweep"

# --- before the board has replied: the queue pair that it opens is closed
board one 127.0.0.2 --qps 1
kill -STOP "${pids[one]}"
start early "$tool" recv --board 127.0.0.2 --messages 10
await_line "$logs/early" 'requests a connection from 127.0.0.2' 20 || fail "recv does not request a connection"
kill -INT "$(family "${pids[early]}" | tail -n 1)"
sleep 0.3 # it has handled the signal
kill -CONT "${pids[one]}"
finish early 10
[ "$status" = 1 ] || fail "recv that is interrupted: exit status $status"
recv 0 --board 127.0.0.2 --messages 10
note "ok recv before it is connected"

# --- the reader of its output has ended
rc=0
timeout 20 "$tool" recv --board 127.0.0.2 --messages 1000000 --gap-us 1000 | head -n 1 >"$logs/first" ||
  rc=${PIPESTATUS[0]}
[ "$rc" = 1 ] || fail "recv whose reader has ended: exit status $rc"
grep -q INIT "$logs/first" || fail "recv prints nothing"
recv 0 --board 127.0.0.2 --messages 10
end_board one
note "ok recv whose reader has ended"
nothing_left
pass
