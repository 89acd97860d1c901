#!/bin/bash
# Unmodified TCP programs over RDMA: Debian's librspreload.so turns their sockets into rsockets. The test checks that
# there is no TCP connection.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need iperf3 rstream ibv_rc_pingpong
enter_namespace "$@"
preload=$(find /usr/lib /usr/lib64 -name librspreload.so 2>/dev/null | head -n 1)
[ -n "$preload" ] || skip "librspreload.so (Debian: librdmacm1) is not installed"
server_env=("LD_PRELOAD=$preload")
client_env=("LD_PRELOAD=$preload")

# TCP sockets with this port in /proc/net/tcp, at either end.
tcp_sockets() { cat /proc/net/tcp /proc/net/tcp6 | grep -ci "$(printf ':%04X ' "$1")" || true; }

transfer() { # LABEL ADDRESS CLIENT-OPTIONS...
  local label=$1 address=$2
  shift 2
  cm_pair "iperf3, $label" iperf3 -s -1 -p %p -- iperf3 -c "$address" -p %p "$@"
  expect client 'iperf Done'
  [ "$(tcp_sockets "$port")" = 0 ] || fail "$label: there was a TCP connection"
}
transfer "one stream" 127.0.0.1 -t 2
transfer "four streams" 127.0.0.1 -t 2 -P 4
transfer "the other way" 127.0.0.1 -t 2 -R
transfer "a given amount" 127.0.0.1 -n 100M
transfer "small writes" 127.0.0.1 -t 1 -l 100
transfer "IPv6" ::1 -t 1

# Contents: rstream checks every byte. Its ordinary sockets are rsockets here.
plain() { # LABEL OPTIONS...
  local label=$1
  shift
  cm_pair "rstream over sockets, $label" rstream -T s -T v -p %p "$@" -- rstream -s 127.0.0.1 -T s -T v -p %p "$@"
  expect client '[0-9.]+s +[0-9.]+ +[0-9.]+$'
  expect_not client 'verif|rsend|rrecv'
  [ "$(tcp_sockets "$port")" = 0 ] || fail "rstream, $label: there was a TCP connection"
}
plain "nonblocking" -I 3 -C 20 -S 100003
plain "blocking" -T b -I 3 -C 20 -S 100003
plain "with poll" -T a -I 3 -C 20 -S 100003

# A program with its own queue pairs: sockets that libibverbs opens for itself must not become rsockets.
cm_pair "ibv_rc_pingpong" ibv_rc_pingpong -d verbena_lo -g 0 -n 100 -p %p -- \
  ibv_rc_pingpong -d verbena_lo -g 0 -n 100 -p %p 127.0.0.1
expect client '100 iters'
[ "$(tcp_sockets "$port")" = 0 ] || fail "ibv_rc_pingpong: there was a TCP connection"

# While it runs, the connection uses Verbena.
take_port
start server env "${server_env[@]}" "$tool" run -- iperf3 -s -1 -p "$port"
await_rdma_listener "$port" server || fail "iperf3 does not listen"
start client env "${client_env[@]}" "$tool" run -- iperf3 -c 127.0.0.1 -p "$port" -t 3 -i 1 --forceflush
await_line "$logs/client" '0\.00-1\.0' 20 || fail "iperf3 does not report"
[ "$(tcp_sockets "$port")" = 0 ] || fail "a TCP connection exists"
"$tool" counters "${pids[client]}" >"$logs/counters" || fail "verbena counters: exit status $?"
grep -Eq '^ +queue_pairs +2 ' "$logs/counters" || fail "the client does not have two queue pairs"
finish client 20
[ "$status" = 0 ] || fail "iperf3: exit status $status"
finish server 20
note "ok two queue pairs, no TCP"
nothing_left
pass "$pairs_run pairs"
