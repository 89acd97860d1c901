#!/bin/bash
# rdma_cm with several processes of one host and over lossy networks: requests reach the listening process, a
# port belongs to one process and is free when that ends, a stopped process does not block the others, and
# tshark decodes all messages.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need rping ucmatose udaddy ib_write_bw ibv_rc_pingpong tshark ip nsenter
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "cannot create network namespaces"

serve() { # NAME PORT [ADDRESS]
  start "$1" "$tool" run "${run_options[@]}" -- rping -s -P -v -S 10000 -a "${3:-0.0.0.0}" -p "$2"
  await_rdma_listener "$2" "$1" || fail "$1 does not listen on port $2"
}
stop() {
  kill -KILL "${pids[$1]}" 2>/dev/null || true
  finish "$1" 5
}
ping() { # LABEL PORT [OPTIONS...]
  local label=$1 to=$2
  shift 2
  start client "$tool" run "${run_options[@]}" -- rping -c -V -C 5 -a 127.0.0.1 -p "$to" "$@"
  finish client 30
  [ "$status" = 0 ] || fail "$label: exit status $status"
}

# --- several listening processes, each on its own port: each client's data reaches only its own server
ports=()
for i in 1 2 3 4; do
  take_port
  ports+=("$port")
  serve "server$i" "$port"
done
for i in 1 2 3 4; do
  start "client$i" "$tool" run -- rping -c -V -C 30 -S $((100 * i)) -a 127.0.0.1 -p "${ports[i - 1]}"
done
for i in 1 2 3 4; do
  finish "client$i" 30
  [ "$status" = 0 ] || fail "client $i of four: exit status $status"
  await_line "$logs/server$i" 'rdma-ping-29:' 5 || fail "server $i did not get its client's data"
  if awk -v want=$((100 * i - 1)) '/server ping data: / {sub(/.*server ping data: /, ""); if (length($0) != want) wrong = 1}
       END {exit !wrong}' "$logs/server$i"; then
    fail "server $i has data of another's client"
  fi
done
note "ok four listening processes"

# --- a used port
start second "$tool" run -- rping -s -a 0.0.0.0 -p "${ports[0]}"
finish second 10
[ "$status" != 0 ] && [ "$status" != late ] || fail "a used port: exit status $status"
grep -q 'Address already in use' "$logs/second" || fail "a used port: EADDRINUSE is not reported"
start second "$tool" run -- rping -s -a 127.0.0.1 -p "${ports[0]}"
finish second 10
grep -q 'Address already in use' "$logs/second" || fail "a port used on all addresses can be bound for one"
note "ok a used port: $(head -n 1 "$logs/second")"
# The same number in another port space is a different port.
start other_space "$tool" run -- ucmatose -P ib -p "${ports[0]}"
await_rdma_listener "${ports[0]}" other_space 2 || fail "port spaces are not separate"
stop other_space

# --- the port of a killed server is free
stop server1
serve server1 "${ports[0]}"
ping "after a kill" "${ports[0]}"
note "ok a killed server's port is free at once"

# --- counters
"$tool" counters "${pids[server1]}" >"$logs/counters" || fail "verbena counters: exit status $?"
grep -Eq '^ +([a-z_]*)mads_received +[1-9][0-9]*  ' "$logs/counters" || fail "no count of datagrams received"
grep -Eq '^ +([a-z_]*)mads_sent +[1-9][0-9]*  ' "$logs/counters" || fail "no count of datagrams sent"
note "ok counters:$(grep -E 'mads_(sent|received) ' "$logs/counters" | awk '{printf " %s %s", $1, $2}')"

# --- a stopped process with sockets on the same address: once as a listener on another port, once with only an
# open device. It does not affect new connections of the others. This needs steering by the kernel.
others_stopped() {
  local i name
  start_pair bystander ibv_rc_pingpong -d verbena_lo -g 0 -n 100000000
  await_line "$logs/bystander.client" 'remote address' 20 || fail "the bystander does not start"
  for name in server2 server3 bystander.client bystander.server; do kill -STOP "${pids[$name]}"; done
  for i in 1 2 3 4 5; do
    ping "others stopped, $i" "${ports[0]}"
    ping "others stopped, $i" "${ports[3]}"
  done
  take_port
  serve later "$port"
  for i in 1 2 3; do ping "a server that started later, $i" "$port"; done
  stop later
  for name in server2 server3 bystander.client bystander.server; do kill -CONT "${pids[$name]}"; done
  ping "continued" "${ports[1]}"
  stop bystander.client
  stop bystander.server
  note "ok others are stopped"
}
if [ "${VERBENA_STEERING:-on}" = on ]; then
  others_stopped
else
  note "left out: others are stopped (the kernel accepts no BPF programs)"
fi
for i in 1 2 3 4; do stop "server$i"; done

# --- both sides killed while they make many connections: the port is free at once
take_port
start killed.server "$tool" run -- ucmatose -p "$port" -c 1000 -C 0
await_rdma_listener "$port" killed.server || fail "ucmatose does not listen"
start killed.client "$tool" run -- ucmatose -s 127.0.0.1 -p "$port" -c 1000 -C 0
await_line "$logs/killed.client" connecting 10 || fail "ucmatose does not start"
stop killed.client
stop killed.server
serve server "$port"
for i in 1 2 3; do ping "after both were killed, $i" "$port"; done
stop server
note "ok both killed while they connect"

# --- captured: tshark decodes every CM message, and all ICRCs are correct
run_options=(--pcap "$work/%p.pcap")
cm_pair "captured, IPv4" rping -s -a 127.0.0.1 -p %p -- rping -c -V -C 2 -a 127.0.0.1 -p %p
cm_pair "captured, IPv6" rping -s -a ::1 -p %p -- rping -c -V -C 2 -a ::1 -p %p
server_port=7174
cm_pair "captured, SIDR" udaddy -- udaddy -s 127.0.0.1
server_port=%p
take_port
start refused "$tool" run --pcap "$work/refused.pcap" -- rping -c -a 127.0.0.1 -p "$port"
finish refused 20
decode() { tshark -n -r "$1" "${@:2}" 2>"$logs/tshark"; }
for file in "$work"/*.pcap; do
  [ -z "$(decode "$file" -Y '_ws.malformed || _ws.unreassembled')" ] || fail "malformed packets: ${file##*/}"
  [ -z "$(decode "$file" -Y '!infiniband.bth')" ] || fail "packets that are not RoCE: ${file##*/}"
  python3 "$root/tests/programs/check_icrc.py" "$file" >"$logs/icrc" || fail "wrong ICRCs"
  decode "$file" -Y 'infiniband.mad' -T fields -e infiniband.mad.attributeid
done | sort | uniq -c >"$logs/attributes"
# REQ 0x10, REJ 0x12, REP 0x13, RTU 0x14, DREQ 0x15, DREP 0x16, SIDR_REQ 0x17, SIDR_REP 0x18
for attribute in 0x0010 0x0012 0x0013 0x0014 0x0015 0x0016 0x0017 0x0018; do
  grep -qi "$attribute" "$logs/attributes" || fail "no message with attribute $attribute in the captures"
done
run_options=()
note "ok tshark decodes: $(tr -s ' ' <"$logs/attributes" | tr '\n' ',')"

# --- a network that loses, duplicates and reorders packets, at both ends and in both directions
for faults in loss=0.1,send=1,seed=3 loss=0.2,seed=5 loss=0.05,duplicate=0.2,reorder=0.2,delay=0.1,send=1,seed=7; do
  run_options=(--faults "$faults")
  # rping's client exits without waiting for the DREP. If its DREQ is lost, the idle server cannot know that.
  # So only the exit status of the client counts.
  take_port
  serve server "$port"
  for i in 1 2 3; do ping "$faults: rping, $i" "$port"; done
  stop server
  cm_pair "$faults: ucmatose" ucmatose -p %p -c 10 -C 2 -- ucmatose -s 127.0.0.1 -p %p -c 10 -C 2
done
run_options=()

# --- two hosts: two namespaces and a wire
connect_second_host
client_in=("${there[@]}")
for address in 192.0.2.1 2001:db8::1; do
  cm_pair "two hosts: rping $address" rping -s -S 30000 -a "$address" -p %p -- rping -c -V -C 20 -S 30000 -a "$address" -p %p
  cm_pair "two hosts: ucmatose $address" ucmatose -b "$address" -p %p -c 50 -- ucmatose -s "$address" -p %p -c 50
done
cm_pair "two hosts: any address" rping -s -a 0.0.0.0 -p %p -- rping -c -V -C 5 -a 192.0.2.1 -p %p
run_options=(--faults "loss=0.1,send=1,seed=9")
cm_pair "two hosts, lossy: ucmatose" ucmatose -b 192.0.2.1 -p %p -c 10 -C 2 -- ucmatose -s 192.0.2.1 -p %p -c 10 -C 2
run_options=()
# A host where no process has the RoCE port: its kernel sends an ICMP error, which counts as a rejection.
for address in 192.0.2.1 2001:db8::1; do
  start unreachable "${there[@]}" "$tool" run -- rping -c -a "$address" -p "$port"
  finish unreachable 60
  [ "$status" != 0 ] && [ "$status" != late ] || fail "no process at $address: exit status $status"
  grep -q 'RDMA_CM_EVENT_REJECTED' "$logs/unreachable" || fail "no process at $address: not refused"
done
note "ok no process at the address: $(grep RDMA_CM_EVENT "$logs/unreachable")"
# An address without a host: reported for IPv4 and IPv6 after the kernel's address resolution fails.
for address in 192.0.2.77 2001:db8::77; do
  start unreachable "$tool" run -- rping -c -a "$address" -p "$port"
  finish unreachable 60
  [ "$status" != 0 ] && [ "$status" != late ] || fail "no host at $address: exit status $status"
  grep -q 'RDMA_CM_EVENT_UNREACHABLE, error -113' "$logs/unreachable" || fail "no host at $address: not reported"
done
note "ok no host at the address: $(grep RDMA_CM_EVENT "$logs/unreachable")"
remove_second_host
nothing_left
pass "$pairs_run pairs"
