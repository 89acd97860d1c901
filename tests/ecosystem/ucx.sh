#!/bin/bash
# UCX over our device: what ucx_info finds, every test of ucx_perftest over rc_verbs and ud_verbs, and its
# rdma_cm by the client and server of libucx-dev's examples.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ucx_info ucx_perftest
enter_namespace "$@"
export UCX_NET_DEVICES=verbena_lo:1
patience=30

bounded "$tool" run -- ucx_info -d
for wanted in rc_verbs ud_verbs 'Device: verbena_lo:1'; do said "$wanted"; done
row ucx_info ucx-utils "lists rc_verbs and ud_verbs on the device"

# ucp_put_lat and the like look at the data themselves; what went through us is counted while it runs.
perftest() { # TEST SIZE
  take_port
  start server "$tool" run -- ucx_perftest -p "$port"
  await_listener "$port" server || fail "$1: the server does not listen"
  start client "$tool" run -- ucx_perftest -p "$port" -t "$1" -s "$2" -n 1000 -w 10 -f 127.0.0.1
  finish client "$patience"
  [ "$status" = 0 ] || fail "$UCX_TLS $1: the client's exit status is $status"
  finish server "$patience"
  [ "$status" = 0 ] || fail "$UCX_TLS $1: the server's exit status is $status"
}
# rc_v and ud_v are UCX's names for rc_verbs and ud_verbs with what connects them.
for UCX_TLS in rc_v ud_v; do
  export UCX_TLS
  for test in tag_lat tag_bw tag_sync_lat stream_lat stream_bw ucp_put_lat ucp_put_bw ucp_get ucp_am_lat ucp_am_bw; do
    perftest "$test" 4096
  done
  for test in ucp_add ucp_fadd ucp_swap ucp_cswap; do perftest "$test" 8; done
  perftest tag_bw 1000003
  row ucx_perftest ucx-utils "${UCX_TLS}erbs: tag, stream, put, get, active messages, atomics"
done

# That it was us: a long run, and the counters in the middle of it.
export UCX_TLS=rc_v
take_port
start server "$tool" run -- ucx_perftest -p "$port"
await_listener "$port" server || fail "the server does not listen"
start client "$tool" run -- ucx_perftest -p "$port" -t tag_bw -s 65536 -n 1000000 127.0.0.1
tries=200
until [ "$(counted packets_sent)" -gt 1000 ]; do
  [ $((tries--)) -gt 0 ] || fail "the traffic does not go through Verbena"
  sleep 0.05
done
kill -KILL $(family "${pids[client]}") $(family "${pids[server]}") 2>/dev/null || true
finish client 5
finish server 5

source=/usr/share/doc/libucx-dev/examples/ucp_client_server.c
if [ -e "$source" ] && command -v gcc >/dev/null; then
  gcc -O1 -o "$work/client_server" "$source" -lucp -lucs 2>"$logs/gcc" || fail "$source does not compile"
  export UCX_SOCKADDR_TLS_PRIORITY=rdmacm
  # Tagged messages, so large that a sender waits until the receiver has them: with the others the client
  # closes when all is sent, and the server may learn of that before it has looked at everything.
  take_port
  start server "$tool" run -- "$work/client_server" -c tag -p "$port" -i 20 -s 100000
  await_rdma_listener "$port" server || fail "ucp_client_server: nobody listens by rdma_cm"
  start client "$tool" run -- "$work/client_server" -c tag -p "$port" -i 20 -s 100000 -a 127.0.0.1
  finish client "$patience"
  [ "$status" = 0 ] || fail "ucp_client_server: the client's exit status is $status"
  tries=200
  until [ "$(grep -c 'UCP TEST SUCCESS' "$logs/server")" -ge 2 ]; do  # the first of twenty, and the last
    [ $((tries--)) -gt 0 ] || fail "ucp_client_server: the server does not see all of it"
    sleep 0.05
  done
  kill -TERM $(family "${pids[server]}") 2>/dev/null || true
  finish server 10
  row ucp_client_server libucx-dev "rdma_cm, rc_verbs: tagged messages of 100,000 bytes"
else
  note "left out: ucp_client_server (libucx-dev or gcc is missing)"
fi
nothing_left
pass
