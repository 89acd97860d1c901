#!/bin/bash
# ucmatose: many connections at once, messages over each; every option except -f gid (AF_IB addresses, which RoCE
# does not have).
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ucmatose
enter_namespace "$@"

# run_case LABEL ADDRESS OPTIONS...: the same options on both sides. The server is bound to any address of both
# families.
run_case() {
  local label=$1 address=$2
  shift 2
  cm_pair "$label" ucmatose -b :: -p %p "$@" -- ucmatose -s "$address" -p %p "$@"
  local side
  for side in server client; do
    expect "$side" 'return status 0'
    expect_not "$side" 'error|fail|unable'
  done
}

run_case "one connection" 127.0.0.1
run_case "IPv6" ::1
run_case "a name" localhost
run_case "numeric address" 127.0.0.1 -f ip
run_case "numeric address, IPv6" ::1 -f ipv6
run_case "as a name" localhost -f name
run_case "20 connections" 127.0.0.1 -c 20
run_case "300 connections" 127.0.0.1 -c 300 -C 4
run_case "300 connections, IPv6" ::1 -c 300 -C 4
run_case "1000 connections, no messages" 127.0.0.1 -c 1000 -C 0
run_case "messages of no bytes" 127.0.0.1 -S 0
run_case "200 messages" 127.0.0.1 -C 200 -c 3
run_case "large messages" 127.0.0.1 -S 1000000 -c 3 -C 5
run_case "type of service" 127.0.0.1 -t 0x28 -c 5
run_case "acknowledge timeout" 127.0.0.1 -a 14 -c 5
run_case "migrated to another channel" 127.0.0.1 -m -c 20
run_case "port space IB" 127.0.0.1 -P ib -c 5
run_case "port space TCP" 127.0.0.1 -P tcp
cm_pair "not bound" ucmatose -p %p -- ucmatose -s 127.0.0.1 -p %p
cm_pair "both bound" ucmatose -b 127.0.0.1 -p %p -c 5 -- ucmatose -b 127.0.0.1 -s 127.0.0.1 -p %p -c 5
cm_pair "both bound, IPv6" ucmatose -b ::1 -p %p -c 5 -- ucmatose -b ::1 -s ::1 -p %p -c 5

# The server rejects one connection too many and then ends. The client first gets either that rejection or the end of
# a connection in progress. Neither side hangs.
take_port
start pair.server "$tool" run -- ucmatose -p "$port" -c 3 -C 0
await_rdma_listener "$port" pair.server || fail "the server does not listen"
start pair.client "$tool" run -- ucmatose -s 127.0.0.1 -p "$port" -c 4 -C 0
for side in client server; do
  finish "pair.$side" 20
  [ "$status" != 0 ] && [ "$status" != late ] || fail "one too many: the $side's exit status is $status"
done
expect server 'failing connection request'
expect client 'RDMA_CM_EVENT_REJECTED, error: 28|RDMA_CM_EVENT_CONNECT_ERROR'
note "ok one too many: $(grep -m 1 RDMA_CM_EVENT "$logs/pair.client")"

# AF_IB is not supported: an error message, no crash and no hang.
start gid "$tool" run -- ucmatose -f gid -s fe80::1
finish gid 20
case $status in 0 | late | 1[0-9][0-9]) fail "-f gid: exit status $status" ;; esac
note "ok -f gid: exit status $status"
nothing_left
pass "$pairs_run pairs"
