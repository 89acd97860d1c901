#!/bin/bash
# The two examples, server and client: they print every step, the data is received, and an error message states the
# remedy. They are linked to the libraries of the system, as a reader's build would be.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "needs its own network namespace: the ports of the examples may be in use"
examples=$build/examples
[ -x "$examples/rdma_cm" ] || fail "$examples/rdma_cm is not built"

check() {
  expect server 'received: "hello, sent"'
  expect server 'in memory now: "hello, written"'
  expect client 'read back: "hello, written"'
  for step in 1 2 3 4 5 6; do
    expect client "^$step\. "
    expect server "^$step\. "
  done
}

# both sides, without rdma_cm
for address in 127.0.0.1 ::1 localhost; do
  rm -f "$logs"/pair.*
  start pair.server "$tool" run -- "$examples/oob_tcp"
  await_listener 18515 pair.server || fail "oob_tcp does not listen"
  start pair.client "$tool" run -- "$examples/oob_tcp" "$address"
  finish_pair pair
  check
  expect client 'is in RTS'
  note "ok oob_tcp, $address"
done

# by rdma_cm
server_port=7471
for address in 127.0.0.1 ::1 localhost; do
  cm_pair "rdma_cm, $address" "$examples/rdma_cm" -- "$examples/rdma_cm" "$address"
  check
  expect client 'event: RDMA_CM_EVENT_ESTABLISHED'
  expect server 'event: RDMA_CM_EVENT_CONNECT_REQUEST'
  expect server 'event: RDMA_CM_EVENT_DISCONNECTED'
done

# A client that connects and exits without a message: the server does not wait indefinitely. The exit status of
# cmtime does not matter.
need cmtime
start early.server "$tool" run -- "$examples/rdma_cm"
await_rdma_listener 7471 early.server || fail "rdma_cm does not listen"
timeout 30 "$tool" run -- cmtime -s 127.0.0.1 -p 7471 -c 1 >"$logs/early.client" 2>&1 || true
finish early.server 30
[ "$status" = 1 ] || fail "rdma_cm, after its client has left early: exit status $status"
grep -q 'left early' "$logs/early.server" || fail "rdma_cm does not report that its client left"
note "ok a client that leaves early"

# Error messages.
try() { # STATUS PATTERN COMMAND...
  local rc=0 expected=$1 pattern=$2
  shift 2
  timeout 30 "$@" >"$logs/output" 2>&1 || rc=$?
  [ "$rc" = "$expected" ] || fail "$*: exit status $rc instead of $expected"
  grep -Eq "$pattern" "$logs/output" || fail "$* does not print: $pattern"
}
try 1 'Is the server started' "$tool" run -- "$examples/oob_tcp" 127.0.0.1
try 1 'is the server started' "$tool" run -- "$examples/rdma_cm" 127.0.0.1
try 1 'Give the server.s IP address' "$tool" run -- "$examples/rdma_cm" no.such.host.invalid
try 1 'verbena run' env VERBENA_DEVICES=none "$tool" run -- "$examples/rdma_cm" 127.0.0.1
note "ok error messages state the remedy"
nothing_left
pass
