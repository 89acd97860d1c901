#!/bin/bash
# libfabric's verbs provider: connected endpoints over rdma_cm, reliable datagrams on top of them, and
# datagrams. Between two network namespaces: it ignores loopback.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need fi_info fi_pingpong ip nsenter
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "needs a network namespace of its own"
connect_second_host
"${there[@]}" ip link set lo up  # libfabric stops its name server through it
set_wire mtu 4500
host=192.0.2.1
client_in=("${there[@]}")

bounded "$tool" run -- fi_info -p verbs
for wanted in FI_EP_MSG FI_EP_DGRAM verbena_veth0-dgram verbena_lo-dgram; do expect_output "$wanted"; done
bounded "$tool" run -- fi_info -p 'verbs;ofi_rxm'
expect_output FI_EP_RDM
row fi_info libfabric-bin "provider verbs: message, reliable (ofi_rxm) and datagram endpoints"

pingpong() { # WHAT OPTIONS...
  local what=$1
  shift
  take_port
  start server "$tool" run -- fi_pingpong -B "$port" "$@"
  await_listener "$port" server || fail "$what: the server does not listen"
  start client "${client_in[@]}" "$tool" run -- fi_pingpong -P "$port" "$@" "$host"
  finish client 60
  [ "$status" = 0 ] || fail "$what: the client's exit status is $status"
  finish server 20
  [ "$status" = 0 ] || fail "$what: the server's exit status is $status"
  row fi_pingpong libfabric-bin "$what"
}
pingpong "provider verbs, connected, data checked" -p verbs -e msg -c -I 200
pingpong "provider verbs;ofi_rxm, reliable, data checked" -p 'verbs;ofi_rxm' -e rdm -c -I 200
# A datagram endpoint has no IP address by which libfabric could choose the device.
pingpong "provider verbs, datagrams (2)" -p verbs -d verbena_veth0-dgram -e dgram -I 200
remove_second_host
nothing_left
pass
