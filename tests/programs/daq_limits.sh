#!/bin/bash
# Detector readout at its limits: a full disk, a master that stops sending, more memory or receives than available,
# a missing NUMA node. Each is reported.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=daq_lib.sh
. "$(dirname "$0")/daq_lib.sh"
need python3
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "needs its own network namespace"

reports() { grep -q "$1" "$logs/recv" || { cat "$logs/recv"; fail "recv does not report: $1"; }; }

# --- more than available
recv 1 --streams 256 --wrap 17179869184
reports '256 streams need 4096.* GiB of memory, and .* are free: make --wrap smaller'
recv 1 --streams 256 --op send --num-wrs 32768 --msg-size 1073741824
reports 'make --num-wrs or --msg-size smaller'
recv 1 --streams 256 --num-wrs 32768 --msg-size 64 --wrap 4096 --no-check --seconds 0.1
reports 'receives for each stream instead of 32768: the device.s completion queue has'
holds "$work/recv.json" 'not r["good"] and all(s["connections"] == 0 for s in r["streams"])' # no board connected
recv 1 --numa 77
reports 'numa 77: no such node'
note "ok more than available"

board one 127.0.0.2
if [ -e /sys/devices/system/node/node0/cpulist ]; then
  recv 0 --board 127.0.0.2 --messages 100 --numa 0
fi

# --- a full disk, simulated by a limit of the file size
cannot_grow=(bash -c 'trap "" XFSZ; ulimit -f "$1"; shift; exec "$@"' -) # KIB COMMAND...
rc=0
"${cannot_grow[@]}" 100 timeout 60 "$tool" recv --json --board 127.0.0.2 --board 127.0.0.2 --msg-size 4096 --messages 400 \
  --dump "$work/dump" >"$work/recv.json" 2>"$logs/recv" || rc=$?
[ "$rc" = 1 ] || fail "recv with a full disk: exit status $rc"
reports 'the dump cannot be written, it ends after 102400 bytes: File too large'
holds "$work/recv.json" 'not r["good"] and all("dump" in s["trouble"] for s in r["streams"])'
[ "$(stat -c %s "$work/dump.000")" = 102400 ] || fail "the dump does not have the size that fits"
end_board one

for blocks in 100 1000000; do
  start one "${cannot_grow[@]}" $blocks "$tool" fpga --listen 127.0.0.2 --json --pcap "$work/board.pcap"
  await_line "$logs/one" 'listens on UDP port' 20 || fail "no board"
  recv 0 --board 127.0.0.2 --messages 400
  kill -TERM "$(family "${pids[one]}" | tail -n 1)"
  finish one 10
  [ "$status" = $((blocks == 100)) ] || fail "board with room for $blocks KiB: exit status $status"
  [ $blocks != 100 ] || grep -q 'board.pcap ends here: File too large' "$logs/one" || fail "a full disk is not reported"
done
grep -q 'ends here' "$logs/one" && fail "a capture that fits is reported as truncated"
rc=0
"$tool" fpga --listen 127.0.0.2 --pcap /dev/full >"$logs/one" 2>&1 || rc=$?
[ "$rc" = 1 ] && grep -q 'cannot create the capture file /dev/full: No space left' "$logs/one" || fail "/dev/full: exit status $rc"
note "ok a full disk"

# --- a master that sends nothing after its request is given up
ask() { # opens a queue pair of `recv` as a board would, from 127.0.0.3
  python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.3", 17185))
s.settimeout(10)
s.sendto(bytes([0x03, 0, 0, 1, 0]) + bytes(16) + bytes([127, 0, 0, 3]) + bytes(24) + (17185).to_bytes(2, "big") + bytes(13), ("127.0.0.1", 17186))
assert s.recv(100)[0] == 0x33  # OPEN_QP, ACK'
}
start passive "$tool" recv --json --silence 0.5
await_line "$logs/passive" 'waits for boards' 20 || fail "recv does not wait"
ask || fail "the master is not accepted"
finish passive 20
[ "$status" = 1 ] || fail "recv that lost its master: exit status $status"
grep -q '127.0.0.3 is silent for 0.5 s: given up' "$logs/passive" || fail "a silent master is not reported"
# With --reconnect its stream is free for another master.
start passive "$tool" recv --json --silence 0.5 --reconnect
await_line "$logs/passive" 'waits for boards' 20 || fail "recv does not wait"
ask || fail "the master is not accepted"
await_line "$logs/passive" 'given up' 10 || fail "a silent master is not given up"
timeout 60 "$tool" send 127.0.0.1 --messages 10 >"$logs/send" 2>&1 || fail "the next sender is not served"
finish passive 20
[ "$status" = 0 ] || fail "recv after a silent master: exit status $status"
note "ok a silent master"
nothing_left
pass
