#!/bin/bash
# verbena explain tells what a capture shows, and says what is wrong with a file that it cannot read.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need tshark dumpcap python3 ibv_rc_pingpong ib_read_bw ib_write_bw rping
enter_namespace "$@"

# captured LABEL OPTIONS -- COMMAND...: runs a pair; $capture is the capture of one side.
captured() {
  local label=$1
  shift
  rm -f "$work"/*.pcap
  run_options=(--pcap "$work/%p.pcap")
  while [ "$1" != -- ]; do run_options+=("$1"); shift; done
  pair "$label" "${@:2}"
  capture=$(find "$work" -name '*.pcap' | sort | head -n 1)
}
# told LABEL PATTERN OPTIONS...: a line of the story matches.
told() {
  local label=$1 pattern=$2
  shift 2
  "$tool" explain "$@" >"$work/story" 2>"$logs/explain" || fail "$label: exit status $?"
  grep -Eq "$pattern" "$work/story" || fail "$label: no line with '$pattern'"
}
# refused LABEL STATUS PATTERN OPTIONS...: the command fails and says why.
refused() {
  local label=$1 expected=$2 pattern=$3 status=0
  shift 3
  "$tool" explain "$@" >"$work/story" 2>"$logs/explain" || status=$?
  [ "$status" = "$expected" ] || fail "$label: exit status $status instead of $expected"
  grep -Eq "$pattern" "$logs/explain" || fail "$label: does not say '$pattern'"
}

captured "without losses" -- ibv_rc_pingpong -d verbena_lo -g 0 -c -s 5001 -n 20
told "SEND" 'SEND \(first\) PSN [0-9]+, bytes 0 to [0-9]+' "$capture"
told "its end" 'SEND \(last\) PSN [0-9]+, bytes [0-9]+ to 5001, .*asks for an ACK' "$capture"
[ "$(grep -c 'QP 0x.* PSN' "$work/story")" = "$(tshark -n -r "$capture" 2>/dev/null | wc -l)" ] ||
  fail "not one line for each packet"
"$tool" explain --errors "$capture" >"$work/story" || fail "--errors: exit status $?"
# On a busy machine there may be probes, which are retransmissions.
! grep '!' "$work/story" | grep -qv '\[retransmission\]' || fail "a transfer without losses has errors"
note "ok a transfer without losses"

VERBENA_EXTENSIONS=off captured "with losses" --faults loss=0.05,seed=3 -- \
  ib_read_bw -d verbena_lo -x 0 -F -s 32768 -n 50
told "READ" 'READ request PSN [0-9]+, [0-9]+ bytes from 0x[0-9a-f]+ under rkey 0x' "$capture"
told "retransmissions" '^ *[0-9.]+ ! .*retransmission' --errors "$capture"
told "the sum" 'packets, [0-9]+ bytes.* [0-9]+ retransmission' --summary "$capture"
[ "$(wc -l <"$work/story")" -lt 10 ] || fail "--summary prints more than the sum"
qpn=$(grep -o 'QP 0x[0-9a-f]*' "$work/story" | head -n 1 | cut -d' ' -f2)
told "one QP" "$qpn" --qp "$qpn" "$capture"
[ "$(grep -o 'QP 0x[0-9a-f]* [A-Z]' "$work/story" | cut -d' ' -f2 | sort -u)" = "$qpn" ] ||
  fail "--qp prints other queue pairs"
note "ok losses, retransmissions, one queue pair"

# A gap: a packet in the middle is not in the capture.
VERBENA_EXTENSIONS=off captured "for a gap" -- ibv_rc_pingpong -d verbena_lo -g 0 -c -s 100 -n 20
send=$(tshark -n -r "$capture" -Y 'infiniband.bth.opcode == 4' -T fields -e frame.number 2>"$logs/tshark" | sed -n 9p)
tshark -n -r "$capture" -Y "frame.number != $send" -w "$work/gap.pcapng" 2>"$logs/tshark"
told "a gap, and pcapng" 'one PSN is missing in the capture' "$work/gap.pcapng"
python3 - "$capture" "$work/flipped.pcap" <<'PYTHON'
import pathlib, sys
data = bytearray(pathlib.Path(sys.argv[1]).read_bytes())
data[-6] ^= 1  # of the last packet's payload or headers
pathlib.Path(sys.argv[2]).write_bytes(data)
PYTHON
told "a flipped bit" 'ICRC is wrong: the receiver drops it' "$work/flipped.pcap"
note "ok a gap, a flipped bit"

rm -f "$work"/*.pcap
run_options=(--pcap "$work/%p.pcap")
cm_pair "rdma_cm" rping -s -a 127.0.0.1 -p %p -C 3 -- rping -c -V -C 3 -a 127.0.0.1 -p %p
capture=$(find "$work" -name '*.pcap' | sort | head -n 1)
for message in 'REQ: asks for a connection, for QP 0x' 'REP: accepts the connection, by QP 0x' 'RTU: ready to use' \
  'DREQ: asks to disconnect'; do
  told "rdma_cm" "$message" "$capture"
done
told "standard input" 'RTU' - <"$capture"
note "ok connection messages"

# The kernel hands batches of packets to a capture as one packet, and Verbena's control datagrams are there, too.
if dumpcap -q -i lo -f 'udp port 4791' -w "$work/lo.pcapng" -a duration:0 2>"$logs/dumpcap"; then
  start dumpcap dumpcap -q -B 16 -i lo -f 'udp port 4791' -w "$work/lo.pcapng"
  await_line "$logs/dumpcap" 'File:' 10 || fail "dumpcap does not start"
  run_options=()
  VERBENA_DATAPATH=udp pair "with dumpcap" ib_write_bw -d verbena_lo -x 0 -F -s 65536 -n 20
  # dumpcap writes a moment after it has received. It may have lost a packet.
  tries=60
  until [ "$("$tool" explain "$work/lo.pcapng" 2>/dev/null | grep -c 'WRITE (last)')" = 20 ] || [ $((tries--)) -le 0 ]; do
    sleep 0.05
  done
  kill -INT "${pids[dumpcap]}"
  finish dumpcap 10
  [ "$status" = 0 ] || fail "dumpcap's exit status is $status"
  told "batches" 'WRITE \(last\) PSN [0-9]+, bytes [0-9]+ to 65536' "$work/lo.pcapng"
  ! grep -q 'ICRC is wrong' "$work/story" || fail "a batch has a wrong ICRC"
  ! grep -q 'not a RoCE packet' "$work/story" || fail "a control datagram is an error"
  # On a busy machine dumpcap itself may lose packets.
  if grep -Eq 'dropped on interface .*: [0-9]+/0 ' "$logs/dumpcap"; then
    ! grep -q 'missing' "$work/story" || fail "packets of a batch are missing"
  fi
  note "ok a capture by dumpcap"
fi

refused "no file" 1 'No such file' "$work/absent.pcap"
echo "this is no capture" >"$work/text"
refused "not a capture" 1 'unknown file format' "$work/text"
: >"$work/empty"
refused "an empty file" 1 'truncated' "$work/empty"
head -c 1000 "$capture" >"$work/short.pcap"
refused "a truncated capture" 1 'the rest cannot be read' "$work/short.pcap"
refused "a wrong QP number" 2 'a QP number is at most' --qp 0x1000000 "$capture"
refused "no argument" 2 'FILE is required'
note "ok bad input"

# Damaged files: an error or a story, but no crash.
python3 - "$tool" "$capture" "$work/damaged.pcap" <<'PYTHON' || fail "a damaged file ends verbena explain by a signal"
import pathlib, random, subprocess, sys
tool, original, damaged = sys.argv[1:]
data, generator = pathlib.Path(original).read_bytes()[:6000], random.Random(7)
for _ in range(150):
    copy = bytearray(data)
    for _ in range(generator.randrange(1, 40)):
        copy[generator.randrange(24, len(copy))] = generator.randrange(256)
    pathlib.Path(damaged).write_bytes(copy)
    status = subprocess.run([tool, "explain", damaged], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            timeout=20, check=False).returncode
    if status not in (0, 1):
        sys.exit(f"exit status {status}")
PYTHON
note "ok damaged files"
nothing_left
pass
