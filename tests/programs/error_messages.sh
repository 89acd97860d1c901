#!/bin/bash
# Error messages state the failure, the peer and the cause; running processes can be queried.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ib_write_bw ibv_rc_pingpong ibv_devinfo python3
enter_namespace "$@"

# The server is killed during the transfer.
run_options=(--log info)
start_pair killed ib_write_bw -d verbena_lo -x 0 -F -D 20
await_line "$logs/killed.client" 'remote address' 20 || fail "the pair does not connect"
sleep 0.5

# The counters of a running process can be read.
"$tool" counters "${pids[killed.client]}" >"$logs/counters" 2>&1 || fail "verbena counters: status $?"
grep -q "^process ${pids[killed.client]}: .*ib_write_bw" "$logs/counters" || fail "no heading"
grep -Eq '^ +packets_sent +[1-9][0-9]*  RoCE packets handed to the datapath' "$logs/counters" ||
  fail "no packets_sent"
if grep -Eq '^ +[a-z_]+ +0( |$)' "$logs/counters"; then fail "zeros are shown without --all"; fi
"$tool" counters --all "${pids[killed.server]}" >"$logs/counters" 2>&1 || fail "counters: status $?"
grep -Eq '^ +retry_exceeded +0  queue pairs failed' "$logs/counters" || fail "--all shows no zeros"
note "ok counters of a live process"

# Every counter has a description, those of injected faults and of a capture, too.
VERBENA_FAULTS=seed=7 VERBENA_PCAP=/dev/null start_pair described ib_write_bw -d verbena_lo -x 0 -F -D 20
await_line "$logs/described.client" 'remote address' 20 || fail "the pair does not connect"
"$tool" counters --all "${pids[described.client]}" >"$logs/counters" || fail "verbena counters: status $?"
for name in queue_pairs packets_sent udp_packets_sent fault_packets_lost pcap_packets_written; do
  grep -q "^ *$name " "$logs/counters" || fail "no counter $name"
done
if grep -E '^ +[a-z_]+ +[0-9]+ *$' "$logs/counters"; then fail "these counters have no description"; fi
kill -KILL "${pids[described.client]}"
finish described.client 5
finish described.server 30 # it ends with its client
note "ok every counter has a description"

kill_server() { # WORDS... in the log of the client
  kill -KILL "${pids[killed.server]}"
  finish killed.server 5
  finish killed.client 30
  [ "$status" != 0 ] || fail "the client did not detect the end of its server"
  [ "$status" != late ] || fail "the client did not give up"
  line=$(grep -E '^verbena\[[0-9]+\]: verbena_lo: QP 0x' "$logs/killed.client" || true)
  [ -n "$line" ] || fail "no line about the failed queue pair"
  [ "$(wc -l <<<"$line")" = 1 ] || fail "more than one line about one queue pair"
  for words in 'QP 0x[0-9a-f]{6} connected to QP 0x[0-9a-f]{6} at 127\.0\.0\.1' "$@"; do
    grep -Eq "$words" <<<"$line" || fail "the line about the failed queue pair does not contain: $words"
  done
  note "ok a killed peer: $line"
}
if [ "${VERBENA_DATAPATH:-shm}" = shm ]; then
  kill_server 'memory that was shared with the peer is closed' "Usual cause: the peer's process has ended"
  VERBENA_DATAPATH=udp start_pair killed ib_write_bw -d verbena_lo -x 0 -F -D 20
  await_line "$logs/killed.client" '#bytes' 20 || fail "the pair does not connect over UDP"
fi
kill_server 'no response' 'after [0-9]+ tries' 'Usual cause: the peer has ended'
run_options=()

# The log of every step.
run_options=(--log debug)
start_pair steps ibv_rc_pingpong -d verbena_lo -g 0 -n 2 -s 64
finish_pair steps
number='0x[0-9a-f]{6}'
expect_steps() { # the steps of the client, in this order
  local words
  for words in "$@"; do
    read -r line <&3 || fail "the steps end before: $words"
    until grep -Eq "^verbena\[[0-9]+\]: $words" <<<"$line"; do read -r line <&3 || fail "no step in order: $words"; done
  done
}
exec 3<"$logs/steps.client"
expect_steps 'memory registered: 64 bytes at 0x[0-9a-f]+, lkey 0x[0-9a-f]+, rkey 0x[0-9a-f]+; peers may: nothing$' \
  'completion queue 1 created: 501 entries$' "QP $number created: RC, up to 1 sends and 500 receives posted$" \
  "QP $number: RESET to INIT" "QP $number: posted receive, wr_id 1: 64 bytes$" '\.\.\. repeated 499 times more$' \
  "QP $number: INIT to RTR: peer QP $number, at 127\.0\.0\.1, path MTU 1024, the peer's first PSN is $number$" \
  "QP $number: RTR to RTS: our first PSN is $number, timeout 14 \(67\.1 ms\), 7 retries, RNR retries: unlimited$" \
  "QP $number: posted SEND, wr_id 2: 64 bytes, signaled$" "QP $number: completed wr_id [12]" "QP $number: completed wr_id [12]"
exec 3<&-
note "ok the log of every step"
run_options=()

# Another program uses port 4791 without sharing it.
if [ "$own_namespace" = yes ]; then
  start holder python3 -c '
import socket, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind(("127.0.0.1", 4791))
print("bound", flush=True)
time.sleep(600)'
  await_line "$logs/holder" bound 10 || fail "cannot bind the port"
  start_pair taken ibv_rc_pingpong -d verbena_lo -g 0
  finish taken.client 30
  case $status in 0 | late) fail "ibv_rc_pingpong: exit status $status" ;; esac
  # The server may wait indefinitely for its client.
  kill "${pids[taken.server]}" 2>/dev/null || true
  finish taken.server 5
  grep -hEq 'verbena\[[0-9]+\]: .*UDP port 4791 .*held by' "$logs"/taken.* ||
    fail "no message that port 4791 is in use"
  note "ok a used port: $(grep -hE 'UDP port 4791' "$logs"/taken.* | head -n 1)"
  "$tool" devices >"$logs/devices" || fail "verbena devices: exit status $?"
  grep -Eq "UDP port 4791 on 127\.0\.0\.1 .*held by process ${pids[holder]} \(python" \
    "$logs/devices" || fail "verbena devices does not name the process that uses port 4791"
  note "ok verbena devices names the process"
fi

# An invalid setting is reported, and the device does not open.
for setting in VERBENA_FAULTS=lose=0.1 VERBENA_PCAP=/nowhere/file.pcap; do
  rc=0
  env "$setting" "$tool" run -- ibv_devinfo -d verbena_lo >"$logs/setting" 2>&1 || rc=$?
  [ "$rc" = 1 ] || fail "$setting: exit status $rc"
  grep -Eq "^verbena\[[0-9]+\]: $setting: " "$logs/setting" || fail "$setting: no reason is given"
done
# An unknown congestion control is ignored; the warning lists those that exist.
for tos in 256 -1 0x 8x DSCP; do
  VERBENA_TOS=$tos "$tool" run -- ibv_devinfo -d verbena_lo >"$logs/setting" 2>&1 || fail "VERBENA_TOS: status $?"
  grep -q "^verbena: VERBENA_TOS=$tos is ignored: use a number from 0 to 255" "$logs/setting" || fail "VERBENA_TOS=$tos: no warning"
done
VERBENA_CC=none "$tool" run -- ibv_devinfo -d verbena_lo >"$logs/setting" 2>&1 || fail "VERBENA_CC: status $?"
grep -Eq '^verbena: VERBENA_CC=none is ignored: use delay \(.*, dcqcn \(.*, aimd \(.*, off \(' "$logs/setting" ||
  fail "VERBENA_CC=none: no warning"
note "ok bad settings"
pass
