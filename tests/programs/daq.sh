#!/bin/bash
# Detector readout: an emulated board, the receiver on plain verbs, and the messages of each when the other
# misbehaves.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=daq_lib.sh
. "$(dirname "$0")/daq_lib.sh"
need python3
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "needs its own network namespace"

good='r["good"] and all(s["wrong"] == 0 and s["lost"] == 0 and s["missing"] == 0 for s in r["streams"])'

# --- every operation, several sizes and poll modes
board one 127.0.0.2
for poll in busy event hybrid; do
  for op in write send; do
    for size in 4 64 4096 5120 300000; do
      recv 0 --board 127.0.0.2 --op $op --msg-size $size --messages 300 --poll $poll
      holds "$work/recv.json" "$good and r['messages'] == 300 and r['bytes'] == 300 * $size"
    done
  done
done
grep -q 'stream 0: QP [0-9]* is INIT' "$logs/recv" || fail "recv does not report INIT"
grep -q 'stream 0: RTR, RTS: receives from 127.0.0.2 QP 2[56][0-9]' "$logs/recv" || fail "recv does not report RTS"
note "ok write and send, all sizes and poll modes"

# --- the board keeps data that a slow consumer does not read: RNR NAKs, and no data is overwritten
recv 0 --board 127.0.0.2 --op send --msg-size 4096 --messages 600 --num-wrs 8 --consumer-us 300
holds "$work/recv.json" "$good and r['streams'][0]['starved'] > 0"
recv 0 --board 127.0.0.2 --op write --msg-size 40000 --messages 300 --num-wrs 4 --consumer-us 300
holds "$work/recv.json" "$good and r['streams'][0]['starved'] > 0"
note "ok back-pressure"

# --- the dump contains the data
recv 0 --board 127.0.0.2 --msg-size 4096 --messages 200 --dump "$work/dump"
recv 0 --board 127.0.0.2 --msg-size 1000 --messages 200 --streams 2 --dump "$work/dumps"
python3 - "$work" <<'CHECK' || fail "the dump is not the generator's pattern"
import struct, sys
for name, size in (("dump", 4096 * 200), ("dumps.000", 200000), ("dumps.001", 200000)):
    data = open(f"{sys.argv[1]}/{name}", "rb").read()
    assert data == struct.pack(f"<{size // 4}I", *range(size // 4)), name
CHECK
note "ok dump"

# --- values beyond the limits of the device or the addresses are reported
recv 0 --board 127.0.0.2 --msg-size 40000 --messages 20 --num-wrs 32768
grep -q 'receives for each stream instead of 32768' "$logs/recv" || fail "fewer receives are not reported"
recv 0 --board 127.0.0.2 --msg-size 64 --messages 100 --num-wrs 32768 --op send
holds "$work/recv.json" "$good"

end_board one
holds "$logs/one" 'r["rnr_naks"] > 0 and r["icrc_errors"] == 0 and r["foreign_packets"] == 0 and r["messages_acked"] == r["messages_made"]'
# --- a capture, decoded by tshark
if command -v tshark >/dev/null; then
  board one 127.0.0.2 --pcap "$work/board.pcap" --loss 0.05
  recv 0 --board 127.0.0.2 --msg-size 5120 --messages 50
  recv 0 --board 127.0.0.2 --msg-size 100 --messages 50 --op send
  end_board one
  decode() { tshark -n -X "lua_script:$root/scripts/daq_cm.lua" -r "$work/board.pcap" -Y "$1" 2>"$logs/tshark"; }
  [ -z "$(decode '_ws.malformed')" ] || fail "malformed packets in the capture"
  [ -z "$(decode '!infiniband.bth && !daqcm')" ] || fail "tshark does not decode all packets of the capture"
  for what in 'daqcm.request == 1 && daqcm.ack_valid == 0' 'daqcm.request == 1 && daqcm.ack == 1 && daqcm.loc.qpn == 256' \
    'daqcm.transmit.length == 5120' 'daqdata.first == 1280' 'daqcm.request == 4 && daqcm.ack == 1' 'infiniband.bth.opcode == 9' \
    'infiniband.aeth'; do
    [ -n "$(decode "$what" | head -n 1)" ] || fail "the capture has no $what"
  done
  tshark -r "$work/board.pcap" -Y 'infiniband.bth' -w "$work/roce.pcap" -F nsecpcap 2>>"$logs/tshark"
  python3 "$root/tests/programs/check_icrc.py" "$work/roce.pcap" >"$logs/icrc" || fail "wrong ICRCs"
  note "ok capture: $(cat "$logs/icrc")"
fi

# --- the firmware's own offsets: 16 bits
board one 127.0.0.2 --wrap 65536
recv 0 --board 127.0.0.2 --msg-size 5120 --messages 500 --wrap 65536
holds "$work/recv.json" "$good and r['receives'] == 11"
recv 0 --board 127.0.0.2 --msg-size 100000 --messages 50 --wrap 65536
grep -q 'data are not checked' "$logs/recv" || fail "data that cannot be checked are not reported"
# A receiver with another setting detects that the data are at the wrong place.
recv 1 --board 127.0.0.2 --msg-size 5120 --messages 500 --wrap 32768
holds "$work/recv.json" "r['streams'][0]['wrong'] > 0 or r['streams'][0]['missing'] > 0"
end_board one
note "ok offsets that wrap"

# --- a board that cannot wait drops messages, and both sides count them
board one 127.0.0.2 --drop --inflight 2 --gap-us 20
# If the last messages are dropped, they are missing at the end, and the exit status reports it.
timeout 60 "$tool" recv --json --board 127.0.0.2 --op send --msg-size 4096 --messages 400 --num-wrs 2 --consumer-us 200 \
  --silence 2 >"$work/recv.json" 2>"$logs/recv" || true
end_board one
python3 - "$work/recv.json" "$logs/one" <<'CHECK' || fail "losses are not accounted for"
import json, sys
r = json.load(open(sys.argv[1]))["streams"][0]
b = json.loads(open(sys.argv[2]).read().strip().split("\n")[-1])
assert b["messages_made"] == 400 and b["overruns"] > 0, b
assert r["wrong"] == 0 and r["messages"] == b["messages_acked"] == 400 - b["overruns"], (r, b)
assert r["lost"] + r["missing"] == b["overruns"], (r, b)
CHECK
note "ok losses of a board that cannot wait"

# --- bad input: the reply, and a log line
start bad "$tool" fpga --listen 127.0.0.2 --qps 1
await_line "$logs/bad" 'listens' 20 || fail "no board"
recv 1 --board 127.0.0.2 --streams 2 --messages 10 --op send
holds "$work/recv.json" "sorted(s['messages'] for s in r['streams']) == [0, 10]"
grep -q '127.0.0.2 refused: NO_QP' "$logs/recv" || fail "recv does not report NO_QP"
python3 - <<'SEND'
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for data in (b"", b"x" * 63, b"y" * 1400, bytes(64), b"\x0d" + bytes(63)):
    s.sendto(data, ("127.0.0.2", 17185))
SEND
await_line "$logs/bad" 'not 64 bytes' 10 || fail "the board does not report the length"
await_line "$logs/bad" 'a message without a request' 10 || fail "the board does not report a message without a request"
await_line "$logs/bad" 'do not support' 10 || fail "the board does not report an unknown request"
recv 0 --board 127.0.0.2 --messages 10
end_board bad
recv 1 --board 127.0.0.2 --messages 10
grep -q '127.0.0.2 does not respond' "$logs/recv" || fail "recv does not report that the board is missing"
recv 2 --board 127.0.0.2 --msg-size 5
recv 2 --board not.an.address
recv 2 --board 127.0.0.2 --gap-us -1
recv 2 --board 127.0.0.2 --messages 4294967296
recv 2 --board 127.0.0.2 --seconds nan
recv 2 --board 127.0.0.2 --msg-size 0x1400
grep -q 'a decimal number' "$logs/recv" || fail "recv does not explain the format of a number"
for wrong in '127.0.0.2 --loss nan' '127.0.0.2 --seconds nan' '127.0.0.2 --connect 127.0.0.1 --msg-size 5' \
  '127.0.0.2 --connect 127.0.0.1 --port 0' 0.0.0.0; do
  rc=0
  # shellcheck disable=SC2086
  timeout 20 "$tool" fpga --listen $wrong >"$logs/wrong" 2>&1 || rc=$?
  [ "$rc" = 2 ] || fail "fpga --listen $wrong: exit status $rc"
done
grep -q 'a board needs one specific address' "$logs/wrong" || fail "fpga does not explain why it cannot listen on all addresses"
rc=0
timeout 60 "$tool" fpga --listen 127.0.0.2 --connect 127.0.0.1 >"$logs/master" 2>&1 || rc=$?
[ "$rc" = 1 ] || fail "a master without a receiver: exit status $rc"
note "ok bad input"

# --- a peer that sends an unusable address (OPEN_QP, ACK with 255.255.255.255) affects only itself
start passive "$tool" recv --json --msg-size 2048
await_line "$logs/passive" 'waits for boards' 20 || fail "recv does not wait"
python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.3", 17185))
s.settimeout(10)
s.sendto(bytes([0x03, 0, 0, 1, 44]) + bytes(16) + b"\xff" * 4 + bytes(24) + (17185).to_bytes(2, "big") + bytes(13), ("127.0.0.1", 17186))
assert s.recv(100)[0] == 0xF3  # OPEN_QP, ERROR' || fail "no ERROR for a board with an unusable address"
timeout 60 "$tool" send 127.0.0.1 --messages 10 --msg-size 2048 >"$logs/send" 2>&1 || fail "the next sender is not served"
finish passive 20
[ "$status" = 0 ] || fail "passive recv: exit status $status"
start unusable python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.3", 17185))
print("listens", flush=True)
while True:
    asked, sender = s.recvfrom(100)
    s.sendto(bytes([asked[0] | 0x30, 0, 0, 1, 44]) + bytes(16) + b"\xff" * 4 + bytes(1) + asked[2:25] + asked[49:], sender)'
await_line "$logs/unusable" listens 10 || fail "no board with an unusable address"
board one 127.0.0.2
recv 1 --board 127.0.0.3 --board 127.0.0.2 --messages 10
holds "$work/recv.json" "[s['messages'] for s in r['streams']] == [0, 10] and '255.255.255.255 QP 300' in r['streams'][0]['trouble']"
end_board one
kill -KILL "$(family "${pids[unusable]}" | tail -n 1)"
finish unusable 5
note "ok peers with unusable addresses"

# --- all data sent before the close is received, even if the receiver is late: the dump is not read
mkfifo "$work/slow"
exec 5<>"$work/slow"
start passive "$tool" recv --json --msg-size 4096 --op send --num-wrs 1000 --dump "$work/slow"
await_line "$logs/passive" 'waits for boards' 20 || fail "recv does not wait"
timeout 60 "$tool" send 127.0.0.1 --messages 900 --op send --msg-size 4096 >"$logs/send" 2>&1 &
sender=$!
await_line "$logs/send" 'RTS' 20 || fail "no connection"
sleep 0.5
cat "$work/slow" >"$work/taken" 5>&- &
reader=$!
exec 5>&-
finish passive 20
[ "$status" = 0 ] || fail "passive recv: exit status $status"
wait $sender || fail "send fails"
wait $reader
[ "$(stat -c %s "$work/taken")" = $((900 * 4096)) ] || fail "only $(stat -c %s "$work/taken") bytes were read"
note "ok nothing is lost at the end"

# --- the transfer also succeeds with closed output descriptors
board one 127.0.0.2
for redirection in '2>/dev/full' '2>&-' '<&- >&- 2>&-'; do
  eval 'timeout 60 "$tool" recv --json --board 127.0.0.2 --messages 10 --dump "$work/unlogged_dump" >"$work/recv.json"' "$redirection" || fail "recv $redirection: exit status $?"
  [ "$(stat -c %s "$work/unlogged_dump")" = 51200 ] || fail "recv $redirection: the dump is not the data"
done
rc=0
timeout 60 "$tool" recv --json --board 127.0.0.2 --messages 10 >/dev/full 2>"$logs/recv" || rc=$?
[ "$rc" = 1 ] && grep -q 'standard output cannot be written' "$logs/recv" || fail "a summary that cannot be written: exit status $rc"
end_board one
rc=0
"$tool" no-such-command 2>/dev/full || rc=$?
[ "$rc" = 2 ] || fail "an error message that cannot be written: exit status $rc"
note "ok closed and full output descriptors"

# --- boards that connect to the receiver (master), and the software sender
start passive "$tool" recv --json --streams 2 --msg-size 2048
await_line "$logs/passive" 'waits for boards' 20 || fail "recv does not wait"
timeout 60 "$tool" fpga --listen 127.0.0.2 --connect 127.0.0.1 --streams 2 --msg-size 2048 --messages 500 --json \
  >"$logs/master" 2>&1 || fail "the master fails"
finish passive 20
[ "$status" = 0 ] || fail "passive recv: exit status $status"
holds "$logs/master" 'r["messages_acked"] == 1000'
tail -n +1 "$logs/passive" | sed -n '/^{/,$p' >"$work/passive.json"
holds "$work/passive.json" 'r["good"] and [s["messages"] for s in r["streams"]] == [500, 500]'
for op in write send; do
  start passive "$tool" recv --json --streams 2 --msg-size 5120 --op $op
  await_line "$logs/passive" 'waits for boards' 20 || fail "recv does not wait"
  timeout 60 "$tool" send 127.0.0.1 --streams 2 --messages 700 --op $op --json >"$work/send.json" 2>"$logs/send" || fail "send fails"
  finish passive 20
  [ "$status" = 0 ] || fail "passive recv: exit status $status"
  sed -n '/^{/,$p' "$logs/passive" >"$work/passive.json"
  holds "$work/passive.json" 'r["good"] and [s["messages"] for s in r["streams"]] == [700, 700]'
  holds "$work/send.json" 'r["messages"] == 1400'
done
# The reverse: the sender waits like a board, executes the receiver's commands, and serves the next one after a failure.
for op in write send; do
  start sender "$tool" send --listen 127.0.0.1 --streams 2 --json
  await_line "$logs/sender" 'waits for receivers' 20 || fail "send does not wait"
  recv 0 --board 127.0.0.1 --streams 2 --op $op --msg-size 3000 --messages 400
  holds "$work/recv.json" "$good and r['messages'] == 800"
  finish sender 20
  [ "$status" = 0 ] || fail "send that waits: exit status $status"
  holds "$logs/sender" 'r["messages"] == 800 and r["bytes"] == 2400000'
done
start sender "$tool" send --listen 127.0.0.1 --json
await_line "$logs/sender" 'waits for receivers' 20 || fail "send does not wait"
recv 1 --board 127.0.0.1 --streams 2 --messages 50
grep -q '127.0.0.1 refused: NO_QP' "$logs/recv" || fail "recv does not report NO_QP"
grep -q 'one stream more than --streams 1: NO_QP' "$logs/sender" || fail "send does not report NO_QP"
finish sender 20
for wrong in "" "127.0.0.1 --listen 127.0.0.1" 127.0.0; do
  rc=0
  # shellcheck disable=SC2086
  timeout 60 "$tool" send $wrong >"$logs/send" 2>&1 || rc=$?
  [ "$rc" = 2 ] || fail "send $wrong: exit status $rc"
done
rc=0
timeout 60 "$tool" send 127.0.0.1 --messages 1 >"$logs/send" 2>&1 || rc=$?
[ "$rc" = 1 ] && grep -q 'does not respond' "$logs/send" || fail "send without a receiver: exit status $rc"
note "ok a master, and verbena send"

# --- a sender of messages larger than the receive buffers: its stream ends, the other continues
start passive "$tool" recv --json --streams 1 --msg-size 1024 --op send --seconds 8
await_line "$logs/passive" 'waits for boards' 20 || fail "recv does not wait"
timeout 60 "$tool" send 127.0.0.1 --messages 10 --op send --msg-size 8192 >"$logs/send" 2>&1 && fail "a too large message is accepted"
await_line "$logs/passive" 'larger than --msg-size 1024' 10 || fail "recv does not report that a message is too large"
timeout 60 "$tool" send 127.0.0.1 --messages 10 --op send --msg-size 1024 --own-port 17190 >"$logs/send" 2>&1 || fail "the next sender is not served"
finish passive 20
note "ok a message that is too large"

# --- the curve
rc=0
timeout 60 "$tool" daq-sweep --output "$work/nowhere/curve" >"$logs/sweep" 2>&1 || rc=$?
[ "$rc" = 1 ] && grep -q 'cannot write .*/nowhere/curve.json' "$logs/sweep" || fail "a sweep that cannot write its result: exit status $rc"
timeout 120 "$tool" daq-sweep --sizes 64,5120 --depths 4,64 --seconds 0.1 --output "$work/curve" >"$logs/sweep" 2>&1 ||
  fail "daq-sweep fails"
python3 - "$work/curve" <<'CHECK' || fail "the files of the curve are not as expected"
import json, sys, xml.etree.ElementTree as xml
r = json.load(open(sys.argv[1] + ".json"))
assert len(r["over_size"]) == 6 and len(r["over_receives"]) == 6
assert all(p["good"] and p["gbps"] > 0 for p in r["over_size"] + r["over_receives"]), r
svg = xml.parse(sys.argv[1] + ".svg").getroot()
assert len(svg.findall(".//{http://www.w3.org/2000/svg}polyline")) == 6
CHECK
note "ok the curve"
nothing_left
pass
