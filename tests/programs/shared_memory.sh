#!/bin/bash
# Processes of one host share memory: packets go through it and not over the wire, a peer that is killed or
# stopped disturbs nobody else, and what cannot share goes over UDP and says so.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong ib_write_bw ib_send_bw
enter_namespace "$@"
export VERBENA_DATAPATH=shm
pingpong=(ibv_rc_pingpong -d verbena_lo -g 0 -c -e)
run_options=(--log info)

# The sum of one counter over all processes.
counter() {
  "$tool" counters >"$logs/counters" 2>&1 || fail "verbena counters: exit status $?"
  awk -v name="$1" '$1 == name {sum += $2} END {print sum + 0}' "$logs/counters"
}

# Runs a pair until it is in the middle, then compares what went through memory and what over UDP.
through() { # LABEL memory|udp
  start_pair "$1" "${pingpong[@]}" -n 1000000
  await_line "$logs/$1.client" 'remote address' 20 || fail "$1 does not connect"
  local tries=100 memory
  until [ "$(counter packets_received)" -gt 1000 ]; do
    [ $((tries--)) -gt 0 ] || fail "$1: no packets"
    sleep 0.05
  done
  memory=$(counter shm_packets_received)
  if [ "$2" = memory ]; then
    [ "$memory" -gt 500 ] || fail "$1: only $memory packets went through memory"
  else
    [ "$memory" = 0 ] || fail "$1: $memory packets went through memory"
  fi
  for side in client server; do
    kill "${pids[$1.$side]}"
    finish "$1.$side" 10
  done
  note "ok $1: packets go $([ "$2" = memory ] && echo through memory || echo over UDP)"
}
through shared memory
VERBENA_DATAPATH=udp through forced udp
run_options+=(--faults loss=0.001,seed=3)
through faults udp
grep -q 'no shared memory' "$logs/faults.client" || fail "that faults are of the wire is not said"
run_options=(--log info)

# One that does not share: the other says so, and both get along over UDP.
take_port
VERBENA_DATAPATH=udp start mixed.server "$tool" run -- "${pingpong[@]}" -n 500 -p "$port"
await_listener "$port" mixed.server || fail "mixed: the server does not listen"
start mixed.client "$tool" run --log info -- "${pingpong[@]}" -n 500 -p "$port" "$host"
finish_pair mixed
grep -q 'packets to it go over UDP' "$logs/mixed.client" || fail "mixed: why it is UDP is not said"
note "ok one that does not share: UDP, and the log says why"

# Stopped in the middle of it; other pairs do their work meanwhile.
start_pair stopped "${pingpong[@]}" -n 100000
start_pair other "${pingpong[@]}" -n 2000
await_line "$logs/stopped.client" 'remote address' 20 || fail "the pair to be stopped does not connect"
kill -STOP "${pids[stopped.server]}"
finish_pair other
start_pair after "${pingpong[@]}" -n 2000
finish_pair after
# Whether its own peer was patient enough is the peer's affair.
for side in client server; do
  kill -KILL "${pids[stopped.$side]}" 2>/dev/null || true
  finish "stopped.$side" 5
done
note "ok a stopped process holds up nobody else"

# Killed in the middle: its peer gets an error, and does not wait for ever.
start_pair killed ib_write_bw -d verbena_lo -x 0 -F -s 1048576 -n 1000000
await_line "$logs/killed.client" '#bytes' 20 || fail "the pair to be killed does not connect"
sleep 0.3
kill -KILL "${pids[killed.server]}"
finish killed.server 5
finish killed.client 30
case $status in
  0 | late) fail "the peer of a killed process ends with status $status" ;;
esac
note "ok the peer of a killed process gets an error"
nothing_left
pass
