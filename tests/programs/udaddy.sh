#!/bin/bash
# udaddy: UD queue pairs that find each other by SIDR, messages in both directions.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need udaddy
enter_namespace "$@"
datagrams_may_get_lost
[ "$own_namespace" = yes ] || skip "needs its own network namespace: udaddy has a fixed port"
server_port=7174

run_case() { # LABEL ADDRESS OPTIONS...
  local label=$1 address=$2
  shift 2
  cm_pair "$label" udaddy -b :: "$@" -- udaddy -s "$address" "$@"
  local side
  for side in server client; do
    expect "$side" 'return status 0'
    expect_not "$side" 'error|fail|unable'
  done
}

run_case "one" 127.0.0.1
expect client 'data transfers complete'
run_case "IPv6" ::1
run_case "a name" localhost -f name
run_case "numeric address" 127.0.0.1 -f ip
run_case "20 at once" 127.0.0.1 -c 20
run_case "20 at once, IPv6" ::1 -c 20
run_case "200 at once, no messages" 127.0.0.1 -c 200 -C 0
run_case "100 messages" 127.0.0.1 -C 100
run_case "messages as large as a packet" 127.0.0.1 -S 4096
run_case "messages of no bytes" 127.0.0.1 -S 0
run_case "type of service" 127.0.0.1 -t 0x28
run_case "port space IPoIB" 127.0.0.1 -P ipoib
run_case "port space IPoIB, by number" ::1 -p 2
run_case "port space UDP" 127.0.0.1 -P udp
cm_pair "not bound" udaddy -- udaddy -s 127.0.0.1
cm_pair "both bound" udaddy -b 127.0.0.1 -- udaddy -b 127.0.0.1 -s 127.0.0.1
cm_pair "both bound, IPv6" udaddy -b ::1 -- udaddy -b ::1 -s ::1

# No service: the program gets an error.
start no_service "$tool" run -- udaddy -s 127.0.0.1
await_line "$logs/no_service" 'RDMA_CM_EVENT_(UNREACHABLE|REJECTED), error' 60 || fail "no service: not reported"
finish no_service 10
[ "$status" != 0 ] || fail "no service: exit status $status"
note "ok no service: $(grep -m 1 RDMA_CM_EVENT "$logs/no_service")"
nothing_left
pass "$pairs_run pairs"
