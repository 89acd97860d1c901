#!/bin/bash
# The smallest programs of rdma_cm: synchronous identifiers from rdma_create_ep, RC and XRC.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need rdma_server rdma_client rdma_xserver rdma_xclient
enter_namespace "$@"

run_case() { # LABEL SERVER... -- CLIENT...
  cm_pair "$@"
  expect server ': end 0'
  expect client ': end 0'
}
run_case "RC" rdma_server -p %p -- rdma_client -s 127.0.0.1 -p %p
run_case "RC, IPv6" rdma_server -s ::1 -p %p -- rdma_client -s ::1 -p %p
run_case "RC, one address" rdma_server -s 127.0.0.1 -p %p -- rdma_client -s 127.0.0.1 -p %p
run_case "RC, a name" rdma_server -s :: -p %p -- rdma_client -s localhost -p %p
for _ in 1 2 3 4 5; do run_case "RC, again" rdma_server -p %p -- rdma_client -s 127.0.0.1 -p %p; done
run_case "xserver, RC" rdma_xserver -p %p -c r -- rdma_xclient -s 127.0.0.1 -p %p -c r
run_case "xserver, XRC" rdma_xserver -p %p -c x -- rdma_xclient -s 127.0.0.1 -p %p -c x
for _ in 1 2 3; do run_case "XRC, again" rdma_xserver -p %p -c x -- rdma_xclient -s 127.0.0.1 -p %p -c x; done

# No listener.
take_port
start no_listener "$tool" run -- rdma_client -s 127.0.0.1 -p "$port"
finish no_listener 20
case $status in 0 | late | 1[0-9][0-9]) fail "no listener: exit status $status" ;; esac
grep -q 'rdma_connect: Connection refused' "$logs/no_listener" || fail "no listener: not reported"
note "ok no listener: $(grep rdma_connect "$logs/no_listener")"
nothing_left
pass "$pairs_run pairs"
