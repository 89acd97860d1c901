#!/bin/bash
# rping with all its options: READ and WRITE of a checked pattern over a connection by rdma_cm.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need rping
enter_namespace "$@"

# ping LABEL SERVER-ADDRESS CLIENT-ADDRESS OPTIONS...: both sides get the options and print the same 20 pings.
ping() {
  local label=$1 at=$2 to=$3
  shift 3
  cm_pair "$label" rping -s -v -a "$at" -p %p "$@" -- rping -c -v -V -C 20 -a "$to" -p %p "$@"
  expect_not client 'mismatch|error|failed'
  grep -o 'ping data: .*' "$logs/pair.client" >"$work/client" || true
  grep -o 'ping data: .*' "$logs/pair.server" >"$work/server" || true
  [ "$(wc -l <"$work/client")" = 20 ] || fail "$label: the client prints $(wc -l <"$work/client") pings"
  cmp -s "$work/client" "$work/server" || fail "$label: the sides print different data"
}

ping "IPv4" 127.0.0.1 127.0.0.1
ping "IPv6" ::1 ::1
ping "a name" localhost localhost
ping "any IPv4 address" 0.0.0.0 127.0.0.1
ping "any IPv6 address" ::0 ::1
ping "any IPv6 address, from IPv4" ::0 127.0.0.1
ping "any IPv4 address, by name" 0.0.0.0 localhost -S 100
ping "client bound to an address" 127.0.0.1 127.0.0.1 -I 127.0.0.1
ping "client bound to an address, IPv6" ::1 ::1 -I ::1
for size in 32 1000 4096 4097 65535; do ping "$size bytes" 127.0.0.1 127.0.0.1 -S "$size"; done
ping "65535 bytes, IPv6" ::1 ::1 -S 65535
ping "own queue pairs" 127.0.0.1 127.0.0.1 -q
ping "own queue pairs, IPv6, large" ::1 ::1 -q -S 30000
ping "debug" 127.0.0.1 127.0.0.1 -d
expect client 'RDMA_CM_EVENT_ESTABLISHED'
expect server 'RDMA_CM_EVENT_CONNECT_REQUEST'
cm_pair "own queue pair, client only" rping -s -a 127.0.0.1 -p %p -- rping -c -V -q -C 10 -a 127.0.0.1 -p %p
cm_pair "own queue pair, server only" rping -s -q -a 127.0.0.1 -p %p -- rping -c -V -C 10 -a 127.0.0.1 -p %p
cm_pair "many pings" rping -s -S 5000 -a 127.0.0.1 -p %p -- rping -c -V -C 2000 -S 5000 -a 127.0.0.1 -p %p

# A persistent server: one client after the other, then several at once.
persistent() { # OPTIONS...
  take_port
  start server "$tool" run -- rping -s -P -v -S 2000 -a 0.0.0.0 -p "$port" "$@"
  await_rdma_listener "$port" server || fail "the persistent server does not listen"
  local i
  for i in 1 2 3; do
    start "client$i" "$tool" run -- rping -c -V -C 10 -S 2000 -a 127.0.0.1 -p "$port" "$@"
    finish "client$i" "$time_limit"
    [ "$status" = 0 ] || fail "client $i of the persistent server: exit status $status"
  done
  # Each starts after the one before has connected: rping's server loses one of two simultaneous requests.
  for i in 1 2 3 4 5 6; do
    start "client$i" "$tool" run -- rping -c -v -V -C 300 -S 2000 -a 127.0.0.1 -p "$port" "$@"
    await_line "$logs/client$i" 'ping data: rdma-ping-0:' 20 || fail "client $i of six does not ping"
  done
  for i in 1 2 3 4 5 6; do
    finish "client$i" "$time_limit"
    [ "$status" = 0 ] || fail "client $i of six at once: exit status $status"
  done
  # Killing a client ends only its own connection.
  start killed "$tool" run -- rping -c -a 127.0.0.1 -p "$port" -v "$@"
  await_line "$logs/killed" 'ping data: rdma-ping-20:' 20 || fail "the client does not ping"
  kill -KILL "${pids[killed]}"
  finish killed 5
  start last "$tool" run -- rping -c -V -C 10 -a 127.0.0.1 -p "$port" "$@"
  finish last "$time_limit"
  [ "$status" = 0 ] || fail "after a killed client: exit status $status"
  kill -0 "${pids[server]}" 2>/dev/null || fail "the persistent server ended"
  kill -TERM "${pids[server]}"
  finish server 10
  note "ok persistent server${*:+ ($*)}: three in a row, six at once, one killed, one more"
}
persistent
persistent -q

# No listener: reported at once, not after a timeout.
take_port
start no_listener "$tool" run -- rping -c -a 127.0.0.1 -p "$port"
finish no_listener 10
[ "$status" != 0 ] || fail "a client without a server succeeds"
[ "$status" != late ] || fail "a client without a server waits"
grep -q 'RDMA_CM_EVENT_REJECTED, error 8' "$logs/no_listener" || fail "the client does not get: rejected, reason 8"
note "ok no listener: $(grep -m 1 REJECTED "$logs/no_listener")"

# If loopback is no device, the first device is used for it, as with the kernel's rdma_cm.
if [ "$own_namespace" = yes ]; then
  ip link add veth0 type veth peer name veth1
  ip link set veth1 addrgenmode none up
  ip link set veth0 addrgenmode none up
  await_carrier veth0
  ip address add 192.0.2.1/24 dev veth0
  run_options=(--device veth0)
  cm_pair "loopback that is no device" rping -s -a 127.0.0.1 -p %p -C 10 -V -- rping -c -a 127.0.0.1 -p %p -C 10 -V
  run_options=()
fi
nothing_left
pass "$pairs_run pairs"
