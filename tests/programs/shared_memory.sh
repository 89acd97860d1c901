#!/bin/bash
# Shared memory between processes of one host: packets use it instead of the wire, a killed or stopped peer does not
# affect others, and processes that cannot share memory use UDP and report it.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong ib_write_bw ib_send_bw
enter_namespace "$@"
unset VERBENA_DATAPATH  # shared memory is the default
pingpong=(ibv_rc_pingpong -d verbena_lo -g 0 -c -e)
run_options=(--log info)

# The sum of one counter over all processes.
counter() {
  "$tool" counters >"$logs/counters" 2>&1 || fail "verbena counters: exit status $?"
  awk -v name="$1" '$1 == name {sum += $2} END {print sum + 0}' "$logs/counters"
}

# Runs a pair for a while, then compares the packets through shared memory and over UDP.
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
    kill "${pids[$1.$side]}" 2>/dev/null || true  # it may have ended with its peer
    finish "$1.$side" 10
  done
  note "ok $1: packets go $([ "$2" = memory ] && echo through memory || echo over UDP)"
}
through shared memory
VERBENA_DATAPATH=udp through forced udp
run_options+=(--faults loss=0.001,seed=3)
through faults memory  # injected faults do not disable shared memory; lost packets are retransmitted
run_options=(--log info)

# One process does not share memory: the other reports it, and both use UDP.
take_port
VERBENA_DATAPATH=udp start mixed.server "$tool" run -- "${pingpong[@]}" -n 500 -p "$port"
await_listener "$port" mixed.server || fail "mixed: the server does not listen"
start mixed.client "$tool" run --log info -- "${pingpong[@]}" -n 500 -p "$port" "$host"
finish_pair mixed
grep -q 'packets to it go over UDP' "$logs/mixed.client" || fail "mixed: the reason for UDP is not reported"
note "ok one process without shared memory: UDP, and the log states the reason"

# The same with processes that may not create shared memory.
limited=(bash -c 'ulimit -f 1000; exec "$@"' limited)
take_port
start limited.server "${limited[@]}" "$tool" run --log info -- "${pingpong[@]}" -n 500 -p "$port"
await_listener "$port" limited.server || fail "limited: the server does not listen"
start limited.client "${limited[@]}" "$tool" run --log info -- "${pingpong[@]}" -n 500 -p "$port" "$host"
finish_pair limited
grep -q 'ulimit -f.*packets to it go over UDP' "$logs"/limited.* ||
  fail "limited: the lack of shared memory is not reported"
note "ok processes that may not create shared memory: UDP, and the log states the reason"

# Stopped during a transfer; other pairs still work.
start_pair stopped "${pingpong[@]}" -n 100000
start_pair other "${pingpong[@]}" -n 2000
await_line "$logs/stopped.client" 'remote address' 20 || fail "the pair to be stopped does not connect"
kill -STOP "${pids[stopped.server]}"
finish_pair other
start_pair after "${pingpong[@]}" -n 2000
finish_pair after
# The stopped process's own peer may have used up its retries.
for side in client server; do
  kill -KILL "${pids[stopped.$side]}" 2>/dev/null || true
  finish "stopped.$side" 5
done
note "ok a stopped process does not block others"

# If the peer does not respond, a transfer soon ends with an error.
interrupt() { # LABEL HOW SIZE PROGRAM...; HOW is a function of the server's process id
  local label=$1 how=$2 size=$3
  shift 3
  start_pair interrupted "$@" -s "$size" -d verbena_lo -x 0 -F -n $((size == 64 ? 10000000 : 1000000))
  await_line "$logs/interrupted.client" '#bytes' 20 || fail "$label: the pair does not connect"
  sleep 0.3
  "$how" "${pids[interrupted.server]}"
  finish interrupted.client 20
  case $status in
    0 | late) fail "$label: the client ends with status $status" ;;
    1[3-9][0-9]) fail "$label: the client ends by signal $((status - 128))" ;;
  esac
  kill -KILL "${pids[interrupted.server]}" 2>/dev/null || true
  finish interrupted.server 5
  note "ok $label: its peer gets an error"
}
end_it() { kill -KILL "$1"; }
stop_it() { kill -STOP "$1"; }
for size in 64 65536 1048576; do
  interrupt "killed, $size bytes sent" end_it "$size" ib_send_bw
  interrupt "killed, $size bytes written" end_it "$size" ib_write_bw
  interrupt "killed, $size bytes read" end_it "$size" ib_read_bw
  interrupt "stopped, $size bytes sent" stop_it "$size" ib_send_bw
done
VERBENA_DATAPATH=udp interrupt "stopped, over UDP" stop_it 65536 ib_send_bw

# Invalid data in the shared memory: both continue over UDP or give up, but neither hangs nor crashes.
overwrite_rings() { # PROCESS: overwrites all rings that it shares
  python3 - "$1" <<'END'
import os, sys
pid = sys.argv[1]
rings = []
for line in open(f"/proc/{pid}/maps"):
    if "memfd:verbena" in line:
        first, last = (int(n, 16) for n in line.split()[0].split("-"))
        if last - first >= 1 << 20:
            rings.append((first, last - first))
assert rings, "shares no memory"
memory = os.open(f"/proc/{pid}/mem", os.O_WRONLY)
written = 0
for first, size in rings:
    try:
        written += os.pwrite(memory, b"\xa5" * size, first)
    except OSError:
        assert written, "cannot be written to"  # otherwise the process detected it and released the memory
END
}
for size in 64 65536; do
  outcome=
  start_pair overwritten ib_send_bw -s "$size" -d verbena_lo -x 0 -F -D 6
  await_line "$logs/overwritten.client" '#bytes' 20 || fail "the pair does not connect"
  sleep 0.3
  overwrite_rings "${pids[overwritten.server]}"
  for end in client server; do  # with -D, both ends stop after this time
    finish "overwritten.$end" 60
    case $status in
      late | 1[3-9][0-9]) fail "the $end of an overwritten pair, $size bytes: status $status" ;;
    esac
    outcome+=" $status"
    if [ "$end" = client ]; then client_status=$status; fi
  done
  if [ "$client_status" = 0 ]; then  # the result counts messages of the last seconds
    grep -Eq "^ *$size +[1-9][0-9]* " "$logs/overwritten.client" ||
      fail "no message was transferred after the rings were overwritten, $size bytes"
    [ "$status" = 0 ] || fail "the client of an overwritten pair succeeded, the server did not: $status"
  fi
  grep -q 'wrote invalid data' "$logs"/overwritten.* || fail "that the memory was overwritten is not reported"
  note "ok invalid data in the memory, $size bytes: no process hangs or crashes (exit statuses:$outcome)"
done
nothing_left
pass
