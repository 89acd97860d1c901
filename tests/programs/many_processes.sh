#!/bin/bash
# Several processes of one user share one address: four pairs at once, one of them is killed, a new one joins.
# The others must not be affected, and nothing may be left behind.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong ib_write_bw
enter_namespace "$@"
pingpong=(ibv_rc_pingpong -d verbena_lo -g 0 -c -e)

# Enough iterations to overlap. They sleep on events, so that two cores suffice for eight processes.
for i in 1 2 3 4; do start_pair "pair$i" "${pingpong[@]}" -n 20000; done
for i in 1 2 3 4; do
  await_line "$logs/pair$i.client" 'remote address' 20 || fail "pair $i does not connect"
done
kill -0 "${pids[pair1.client]}" 2>/dev/null || fail "too few iterations: the first pair has already ended"
"$tool" counters >"$logs/counters" 2>&1 || fail "verbena counters: exit status $?"
[ "$(grep -c '^process ' "$logs/counters")" -ge 8 ] || fail "verbena counters shows fewer than 8 processes"
note "ok four pairs at once"

kill -KILL "${pids[pair2.client]}"
finish pair2.client 5
[ "$status" = 137 ] || fail "the killed client's exit status is $status"
start_pair joined "${pingpong[@]}" -n 2000
finish_pair joined
note "ok one killed, a new pair joined"

# The peer of the killed process may wait indefinitely for a message or may have given up: both are correct.
kill -KILL "${pids[pair2.server]}" 2>/dev/null || true
finish pair2.server 5
for i in 1 3 4; do finish_pair "pair$i"; done
note "ok the other three pairs succeeded"

# Two servers and two clients of different programs on one address.
start_pair write1 ib_write_bw -d verbena_lo -x 0 -F -n 1000 -s 65536
start_pair write2 ib_write_bw -d verbena_lo -x 0 -F -n 1000 -s 4096 -q 4
finish_pair write1
finish_pair write2
note "ok two ib_write_bw pairs at once"
nothing_left
pass
