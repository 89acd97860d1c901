#!/bin/bash
# uDAPL: Debian's test programs over the provider that uses rdma_cm (libdaplofa), on one host and between two. The
# other providers do not work on RoCE: ucm addresses peers by LID, scm needs a host name that resolves.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need dtest dtestx dtestcm dtestsrq dapltest ip nsenter
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "the ports of these programs are fixed and may be in use"
time_limit=60
connect_second_host
export DAT_OVERRIDE=$work/dat.conf  # the provider is given an interface name
echo 'verbena u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "veth0 0" ""' >"$DAT_OVERRIDE"
parameters_port=15828  # TCP: dtest, dtestx and dtestcm send the client its parameters here

# both AWAIT PORT PROGRAM OPTIONS...: runs its server and client; both must succeed.
both() {
  local await=$1 port=$2 side
  shift 2
  start server "$tool" run -- "$@" -P verbena -s
  "$await" "$port" server || fail "$1: the server does not listen"
  start client "${client_in[@]}" "$tool" run -- "$@" -P verbena -h 192.0.2.1
  for side in client server; do
    finish $side "$time_limit"
    [ "$status" = 0 ] || fail "$*: the $side's exit status is $status"
  done
}
expect_both_output() { # PATTERN
  local side
  for side in client server; do grep -Eq -- "$1" "$logs/$side" || fail "the $side did not print: $1"; done
}
# dapltest places the segments of a buffer at multiples of 256 bytes and checks them there; data that it writes or reads
# by RDMA is contiguous on the other side. So segments of RW and RR, where there are several, are multiples of 256.
test_client() { # T|P|Q OPTIONS...
  bounded "${client_in[@]}" "$tool" run -- dapltest -T "$1" -D verbena -s 192.0.2.1 "${@:2}"
  expect_output 'End of Work'
  if grep -E 'Error' "$logs/out"; then fail "dapltest: the client reports an error"; fi
}

run_all() { # WHERE
  both await_listener $parameters_port dtest -b 65536 -D
  expect_both_output 'DAPL Test Complete\. PASSED'
  both await_listener $parameters_port dtest -b 65536 -c -p -W
  expect_both_output 'DAPL Test Complete\. PASSED'
  both await_listener $parameters_port dtestx
  expect_both_output 'immed/atomic test PASSED'
  both await_listener $parameters_port dtestcm -c 100
  grep -q 'Num=100$' "$logs/client" || fail "dtestcm: not every connection was established"
  both await_rdma_listener 45248 dtestsrq -c 4 -B 10
  expect_both_output 'ALL 4 CONNECTED'
  expect_both_output 'Test Complete'

  start dapltest "$tool" run -- dapltest -T S -D verbena
  await_rdma_listener 62000 dapltest || fail "dapltest does not listen"
  test_client T -i 100 -t 2 -w 4 -V client SR 4096 2 server SR 4096 2 client RW 65536 server RR 65536
  expect_output 'Total RDMA Write : +52\.42 MB'
  test_client T -i 100 -P -V client SR 1000 3 server SR 1000 3 server RW 320000 2 client RR 320000 2
  test_client P -i 2000 RW 8192
  test_client P -i 2000 -m p RR 8192
  test_client Q
  finish dapltest "$time_limit"
  [ "$status" = 0 ] || fail "dapltest: the server's exit status is $status"
  grep -q 'Transaction Test Finished' "$logs/dapltest" || fail "dapltest: the server ran no transactions"
  if grep -iE 'error|mismatch|fail' "$logs/dapltest"; then fail "dapltest: the server reports an error"; fi
  note "ok $1"
}
run_all "one host"
client_in=("${there[@]}")
run_all "between two hosts"
row uDAPL dapl2-utils "dtest, dtestx (immediate data, atomics), dtestcm, dtestsrq; dapltest with data validation; one host and two"
remove_second_host
nothing_left
pass
