#!/bin/bash
# UCX over our device: ucx_info, every test of ucx_perftest over rc_verbs and ud_verbs, and connections through
# rdma_cm with the client and server of libucx-dev's examples.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ucx_info ucx_perftest
enter_namespace "$@"
export UCX_NET_DEVICES=verbena_lo:1
time_limit=30

bounded "$tool" run -- ucx_info -d
for wanted in rc_verbs ud_verbs 'Device: verbena_lo:1'; do expect_output "$wanted"; done
row ucx_info ucx-utils "lists rc_verbs and ud_verbs on the device"

# Every test that ucx_perftest lists; run_tests holds those that ran.
declare -A run_tests=()
perftest() { # TEST SIZE OPTIONS...
  local test=$1 size=$2
  shift 2
  take_port
  start server "$tool" run -- ucx_perftest -p "$port"
  await_listener "$port" server || fail "$test: the server does not listen"
  start client "$tool" run -- ucx_perftest -p "$port" -t "$test" -s "$size" -n 1000 -w 10 -f "$@" 127.0.0.1
  finish client "$time_limit"
  [ "$status" = 0 ] || fail "${UCX_TLS:-} $test $*: the client's exit status is $status"
  finish server "$time_limit"
  [ "$status" = 0 ] || fail "${UCX_TLS:-} $test $*: the server's exit status is $status"
  run_tests[$test]=yes
}
# The transport layer by itself: data layouts and sizes.
for transport in rc_verbs ud_verbs; do
  on=(-d verbena_lo:1 -x $transport -D)
  for test in am_lat am_bw; do
    perftest $test 8 "${on[@]}" short
    perftest $test 4000 "${on[@]}" bcopy
    perftest $test 4000 "${on[@]}" zcopy
  done
done
row ucx_perftest ucx-utils "UCT over rc_verbs and ud_verbs: active messages (short, bcopy, zcopy)"
on=(-d verbena_lo:1 -x rc_verbs -D)
perftest put_lat 8 "${on[@]}" short
perftest put_lat 4000 "${on[@]}" bcopy
perftest put_bw 100000 "${on[@]}" zcopy
perftest get 4000 "${on[@]}" bcopy
perftest get 100000 "${on[@]}" zcopy
row ucx_perftest ucx-utils "UCT over rc_verbs: put, get (UCT defines neither for UD)"
# rc_v and ud_v are UCX's names for rc_verbs and ud_verbs with the transports that connect them.
for UCX_TLS in rc_v ud_v; do
  export UCX_TLS
  for test in tag_lat tag_bw tag_sync_lat tag_sync_bw stream_lat stream_bw ucp_put_lat ucp_put_bw ucp_get ucp_am_lat ucp_am_bw; do
    perftest $test 4096
  done
  for test in ucp_add ucp_fadd ucp_swap ucp_cswap; do perftest $test 8; done
  perftest tag_bw 1000003
  perftest stream_bw 65536 -r recv_data
  row ucx_perftest ucx-utils "UCP over ${UCX_TLS}erbs: tag, stream, put, get, active messages, atomics"
done
# UCT's own atomics are left out: this UCX offers none on the device (ucx_info -d), so it refuses their tests.
for test in $(ucx_perftest -h 2>&1 | awk '$2 == "-" && $3 ~ /^UC[TP]$/ {print $1}'); do
  case $test in add_lat | add_mr | fadd | swap | cswap) continue ;; esac
  [ -n "${run_tests[$test]:-}" ] || fail "ucx_perftest knows a test that was not run: $test"
done

# The traffic goes through Verbena: reads the counters during a long run.
export UCX_TLS=rc_v
take_port
start server "$tool" run -- ucx_perftest -p "$port"
await_listener "$port" server || fail "the server does not listen"
start client "$tool" run -- ucx_perftest -p "$port" -t tag_bw -s 65536 -n 1000000 127.0.0.1
tries=200
until [ "$(counter_sum packets_sent)" -gt 1000 ]; do
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
  # The server prints the first and the last of twenty messages. Tagged messages are so large that the sender waits
  # for the receiver. With the others the client closes when all is sent, and the server may see the close before
  # the last message: the example behaves so on hardware too.
  client_server() { # HOW AT-LEAST
    local tries=200 right
    take_port
    start server "$tool" run -- "$work/client_server" -c "$1" -p "$port" -i 20 -s 100000
    await_rdma_listener "$port" server || fail "ucp_client_server $1: nothing listens through rdma_cm"
    start client "$tool" run -- "$work/client_server" -c "$1" -p "$port" -i 20 -s 100000 -a 127.0.0.1
    finish client "$time_limit"
    [ "$status" = 0 ] || fail "ucp_client_server $1: the client's exit status is $status"
    right=$(printf 'ABCDEFGHIJKLMNOPQRSTUVWXYZ%.0s' {1..3847} | head -c 99999).  # for the NUL
    until [ "$(grep -acFx "$right" "$logs/server")" -ge "$2" ]; do
      [ $((tries--)) -gt 0 ] || fail "ucp_client_server $1: the server did not print the message"
      sleep 0.05
    done
    kill -TERM $(family "${pids[server]}") 2>/dev/null || true
    finish server 10
  }
  client_server tag 2
  client_server am 1
  client_server stream 1
  row ucp_client_server libucx-dev "rdma_cm, rc_verbs: messages of 100,000 bytes, tagged, active, stream"
else
  note "left out: ucp_client_server (libucx-dev or gcc is missing)"
fi
nothing_left
pass
