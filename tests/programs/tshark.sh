#!/bin/bash
# Another implementation accepts the captures of VERBENA_PCAP: tshark decodes every packet, and an independent
# computation confirms the ICRCs. Packets through shared memory are captured too.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need tshark python3 ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ib_atomic_bw ib_read_bw ib_write_bw
enter_namespace "$@"

decode() { tshark -n -r "$1" "${@:2}" 2>"$logs/tshark"; }

# check LABEL OPCODES FILE...: exactly these BTH opcodes occur, and nothing is wrong with any packet.
check() {
  local label=$1 expected=$2 file seen
  shift 2
  for file in "$@"; do
    [ -s "$file" ] || fail "$label: no capture file"
    [ -z "$(decode "$file" -Y '_ws.malformed || _ws.unreassembled')" ] || fail "$label: malformed packets"
    [ -z "$(decode "$file" -Y '!infiniband.bth')" ] || fail "$label: packets that are not RoCE"
    [ -z "$(decode "$file" -o ip.check_checksum:TRUE -Y 'ip.checksum.status == 0')" ] ||
      fail "$label: wrong IP header checksums"
    python3 "$root/tests/programs/check_icrc.py" "$file" >"$logs/icrc" || fail "$label: wrong ICRCs"
    seen=$(decode "$file" -T fields -e infiniband.bth.opcode | sort -nu | tr '\n' ' ')
    [ "${seen% }" = "$expected" ] || fail "$label: opcodes $seen instead of $expected"
    note "ok $label: $(cat "$logs/icrc")"
  done
}

# captured LABEL OPCODES COMMAND...: runs a pair and checks the captures of both sides.
captured() {
  local label=$1 expected=$2
  shift 2
  rm -f "$work"/*.pcap
  run_options=(--pcap "$work/%p.pcap")
  pair "$label" "$@"
  check "$label" "$expected" "$work"/*.pcap
}

# Opcodes: 0 1 2 4 SEND first, middle, last, only; 6 7 8 10 WRITE; 12 READ request, 13-16 its response;
# 17 acknowledge; 18 atomic acknowledge, 19 compare and swap, 20 fetch and add.
captured "SEND of one packet" "4 17" ibv_rc_pingpong -d verbena_lo -g 0 -c -s 100 -n 20
captured "SEND of many packets" "0 1 2 17" ibv_rc_pingpong -d verbena_lo -g 0 -c -s 5001 -n 20
captured "SEND over IPv6" "0 1 2 17" ibv_rc_pingpong -d verbena_lo -g 1 -c -s 4096 -n 20
captured "WRITE" "6 7 8 17" ib_write_bw -d verbena_lo -x 0 -F -s 65536 -n 20
captured "READ" "12 13 14 15" ib_read_bw -d verbena_lo -x 0 -F -s 32768 -n 20
captured "READ of one packet" "12 16" ib_read_bw -d verbena_lo -x 0 -F -s 64 -n 20
captured "compare and swap" "18 19" ib_atomic_bw -d verbena_lo -x 0 -F -A CMP_AND_SWAP -n 20
captured "fetch and add" "18 20" ib_atomic_bw -d verbena_lo -x 0 -F -A FETCH_AND_ADD -n 20
captured "UC SEND" "32 33 34" ibv_uc_pingpong -d verbena_lo -g 0 -c -s 5001 -n 20
captured "UC WRITE" "38 39 40" ib_write_bw -d verbena_lo -x 0 -F -c UC -s 32768 -n 20
captured "UD SEND" "100" ibv_ud_pingpong -d verbena_lo -g 0 -c -s 1000 -n 20
captured "UD SEND over IPv6" "100" ibv_ud_pingpong -d verbena_lo -g 1 -c -s 1000 -n 20
[ -z "$(decode "$(ls "$work"/*.pcap | head -n 1)" -Y 'infiniband.bth.a == 1 || infiniband.deth.q_key != 0x11111111')" ] ||
  fail "a datagram requests an ACK, or has another Q_Key"

# Two Verbenas that lose packets use extensions (docs/design/extensions.md): NAKs with a SACK list, and extension
# flags in reserved bits.
rm -f "$work"/*.pcap
run_options=(--pcap "$work/%p.pcap" --faults "loss=0.05,seed=3")
pair "WRITE with losses" ib_write_bw -d verbena_lo -x 0 -F -s 65536 -n 100
check "WRITE with losses" "6 7 8 17" "$work"/*.pcap
for file in "$work"/*.pcap; do
  for packets in "infiniband.bth.opcode == 17" "infiniband.bth.opcode != 17"; do
    [ -n "$(decode "$file" -Y "$packets && infiniband.bth.reserved7 != 0")" ] || fail "no extension flags: $packets"
  done
done

# ECN: data packets and ACKs are ECT(0). A peer without extensions gets a CNP (opcode 129) for packets that arrive
# with a mark, which is Not-ECT; a Verbena gets BECN in the ACKs, except for its first packets. Byte 4 of the BTH
# begins with FECN and BECN.
no_packet() { # FILE FILTER MESSAGE
  [ -z "$(decode "$1" -Y "$2")" ] || fail "$3"
}
some_packet() {
  [ -n "$(decode "$1" -Y "$2")" ] || fail "$3"
}
for version in 0:ip.dsfield 1:ipv6.tclass; do
  ecn=${version#*:}.ecn dscp=${version#*:}.dscp
  # Shared memory has the ECN bits of a path only once, since it marks no packets by itself.
  wrong_ecn=
  [ "${VERBENA_DATAPATH:-shm}" = shm ] || wrong_ecn="$ecn != 0 ||"
  rm -f "$work"/*.pcap
  run_options=(--pcap "$work/%p.pcap" --faults mark=0.5)
  export VERBENA_TOS=104
  pair "marked packets, $ecn" ib_write_bw -d verbena_lo -x "${version%:*}" -F -s 65536 -n 100
  check "marked packets, $ecn" "6 7 8 17 129" "$work"/*.pcap
  for file in "$work"/*.pcap; do
    no_packet "$file" "infiniband.bth.opcode != 129 && $ecn != 2 && $ecn != 3" "a packet is not ECN-capable"
    no_packet "$file" "$dscp != 26" "a packet has another DSCP than that of VERBENA_TOS"
    some_packet "$file" "infiniband.bth.opcode == 17 && udp.payload[4] == 40" "no ACK echoes a mark"
  done
  rm -f "$work"/*.pcap
  export VERBENA_EXTENSIONS=off
  pair "marked packets, $ecn, without extensions" ib_write_bw -d verbena_lo -x "${version%:*}" -F -s 65536 -n 100 --tclass=64
  unset VERBENA_EXTENSIONS VERBENA_TOS
  check "marked packets, $ecn, without extensions" "6 7 8 17 129" "$work"/*.pcap
  for file in "$work"/*.pcap; do
    no_packet "$file" "infiniband.bth.opcode == 129 && ($wrong_ecn $dscp != 16 || udp.payload[4] != 40 || infiniband.bth.psn != 0)" \
      "a CNP is wrong"
    no_packet "$file" "infiniband.bth.opcode == 17 && udp.payload[4] == 40" "an ACK echoes a mark without extensions"
  done
done

# In a ping-pong a request piggybacks the ACK, four bytes before its payload.
ping_pong=(ib_send_lat -d verbena_lo -x 0 -F -s 100 -n 500)
captured "SENDs in a ping-pong" "4 17" "${ping_pong[@]}"
for file in "$work"/*.pcap; do
  [ -n "$(decode "$file" -Y 'infiniband.bth.opcode == 4 && infiniband.bth.reserved7 != 0 && udp.length == 128')" ] ||
    fail "no request piggybacks an ACK"
done
export VERBENA_EXTENSIONS=off
captured "the same without extensions" "4 17" "${ping_pong[@]}"
unset VERBENA_EXTENSIONS
for file in "$work"/*.pcap; do
  [ -z "$(decode "$file" -Y 'infiniband.bth.reserved7 != 0 || (infiniband.bth.opcode == 4 && udp.length != 124)')" ] ||
    fail "extensions are off but used"
done

# A capture leaves shared memory on and contains each WRITE there too: none is executed by a direct copy.
if [ "${VERBENA_DATAPATH:-shm}" = shm ]; then
  rm -f "$work"/*.pcap
  run_options=(--pcap "$work/%p.pcap")
  start_pair memory ib_write_bw -d verbena_lo -x 0 -F -s 65536 -D 3
  await_line "$logs/memory.client" '#bytes' 20 || fail "the pair does not connect"
  sleep 0.5
  "$tool" counters --all "${pids[memory.client]}" >"$logs/counters" || fail "verbena counters: status $?"
  finish_pair memory
  grep -Eq '^ +shm_packets_sent +[1-9]' "$logs/counters" || fail "a capture switches shared memory off"
  grep -Eq '^ +shm_copies +0( |$)' "$logs/counters" || fail "a WRITE was executed without a packet"
  note "ok packets through shared memory"
  # A capture at one end is enough.
  rm -f "$work"/*.pcap
  run_options=()
  client_in=(env "VERBENA_PCAP=$work/%p.pcap")
  pair "WRITE, captured at one end" ib_write_bw -d verbena_lo -x 0 -F -s 65536 -n 20
  client_in=()
  check "a capture at one end" "6 7 8 17" "$work"/*.pcap
fi

# One READ in detail: addresses, length and PSNs as tshark decodes them.
run_options=(--pcap "$work/%p.pcap")
rm -f "$work"/*.pcap
pair "READ, one at a time" ib_read_lat -d verbena_lo -x 0 -F -s 10000 -n 5
files=("$work"/*.pcap)
decode "${files[0]}" -Y 'infiniband.bth.opcode == 12' -T fields -e infiniband.reth.dmalen |
  sort -u >"$logs/lengths"
[ "$(cat "$logs/lengths")" = 10000 ] || fail "the READ requests are not of 10000 bytes"
[ -z "$(decode "${files[0]}" -Y 'infiniband.bth.tver != 0 || infiniband.bth.p_key != 0xffff')" ] ||
  fail "transport version or partition key"
note "ok READ fields"
pass
