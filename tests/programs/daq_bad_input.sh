#!/bin/bash
# Detector readout with misbehaving peers: each gets the reply of the protocol, or none if the firmware sends none,
# and a log line reports it. Other peers are served.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=daq_lib.sh
. "$(dirname "$0")/daq_lib.sh"
need python3
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "needs its own network namespace"

# --- a host that sends invalid requests to a board
start board "$tool" fpga --listen 127.0.0.2 --qps 1
await_line "$logs/board" 'listens' 20 || fail "no board"
python3 - <<'ASK' || fail "the board does not reply as the firmware does"
import socket
OPEN, MODIFY, CLOSE = 0x03, 0x07, 0x09
ACK, NO_QP, NAK, ERROR = 0x30, 0x50, 0x70, 0xF0
host = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
host.bind(("127.0.0.1", 17186))

def message(request, qpn=0, ours=5):
    local = bytes([0]) + ours.to_bytes(3, "big") + bytes(16) + bytes([127, 0, 0, 1])
    remote = bytes([0]) + qpn.to_bytes(3, "big") + bytes(20)
    return bytes([request]) + local + remote + (17186).to_bytes(2, "big") + bytes(13)

def ask(data, port=17185, limit=5):
    assert len(data) in (64, 63, 65)
    host.settimeout(limit)
    host.sendto(data, ("127.0.0.2", port))
    try:
        return host.recv(100)
    except (TimeoutError, ConnectionRefusedError):
        return None

def reply_code(data):
    got = ask(data)
    assert got is not None and len(got) == 64, got
    return got[0]

for qpn in (0, 255, 257, 0xFFFFFF):  # outside the pool
    assert reply_code(message(CLOSE, qpn)) == CLOSE | NAK, qpn
    assert reply_code(message(MODIFY, qpn)) == MODIFY | NAK, qpn
assert reply_code(message(CLOSE, 256)) == CLOSE | ERROR  # never opened
assert reply_code(message(OPEN)) == OPEN | ACK
assert reply_code(message(OPEN, ours=6)) == OPEN | NO_QP  # full
assert reply_code(message(CLOSE, 256)) == CLOSE | ACK
assert reply_code(message(CLOSE, 256)) == CLOSE | ERROR  # closed before
for dropped in (message(0x05), message(0x0B), message(0x0F), message(OPEN)[:63], message(OPEN) + b"x"):
    assert ask(dropped, limit=0.2) is None, dropped
assert ask(message(OPEN), port=17184, limit=0.2) is None  # an unused port
assert reply_code(message(OPEN)) == OPEN | ACK  # the board still works
assert reply_code(message(CLOSE, 256)) == CLOSE | ACK
ASK
for line in 'QP 257: .*NAK' 'QP 256: .*ERROR' 'NO_QP' 'do not support: dropped' 'not 64 bytes: dropped'; do
  await_line "$logs/board" "$line" 5 || { cat "$logs/board"; fail "the board does not log: $line"; }
done
recv 0 --board 127.0.0.2 --messages 10
end_board board
note "ok invalid requests to a board"

# --- a board that writes beyond its memory region: only its queue pair fails
board good 127.0.0.2 --wrap 32768
board bad 127.0.0.3 --wrap 65536
recv 1 --board 127.0.0.2 --board 127.0.0.3 --msg-size 5120 --messages 500 --wrap 32768
holds "$work/recv.json" "r['streams'][0]['messages'] == 500 and r['streams'][0]['wrong'] == 0"
holds "$work/recv.json" "'wrote outside its buffer' in r['streams'][1]['trouble'] and r['streams'][1]['missing'] > 0"
end_board good
kill -TERM "$(family "${pids[bad]}" | tail -n 1)"
finish bad 10
grep -q 'failed: the host rejected a request (NAK code 2)' "$logs/bad" || fail "the board does not report that it was rejected"
note "ok writes outside the buffer"

# --- a master that reboots: it has lost its connection, and its PSNs start again
start passive "$tool" recv --json --msg-size 1024
await_line "$logs/passive" 'waits for boards' 20 || fail "recv does not wait"
master=("$tool" fpga --listen 127.0.0.2 --connect 127.0.0.1 --msg-size 1024 --json)
start master "${master[@]}" --messages 100000 --gap-us 1000
await_line "$logs/passive" 'RTR, RTS' 20 || fail "no connection"
sleep 1.2 # longer than a duplicate of the first request could take
kill -KILL "$(family "${pids[master]}" | tail -n 1)"
finish master 5
timeout 60 "${master[@]}" --messages 300 >"$logs/master" 2>&1 || fail "the master fails after its reboot"
finish passive 20
[ "$status" = 0 ] || fail "recv of a board that rebooted: exit status $status"
grep -q '127.0.0.2 has restarted: the previous connection has ended' "$logs/passive" || fail "the reboot is not reported"
sed -n '/^{/,$p' "$logs/passive" >"$work/passive.json"
holds "$work/passive.json" "r['good'] and r['streams'][0]['connections'] == 2 and r['messages'] > 300"
note "ok a board that reboots"
nothing_left
pass
