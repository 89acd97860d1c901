#!/bin/bash
# rsockets: stream and datagram sockets over RDMA. rstream and riostream check their data; the test compares rcopy's
# file. rstream -T fork is omitted, because it uses the parent's queue pair in the child.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need rstream riostream rcopy udpong cmp
enter_namespace "$@"

# stream LABEL PROGRAM ADDRESS OPTIONS...: the same options on both sides.
stream() {
  local label="$2, $1" program=$2 address=$3 side
  shift 3
  cm_pair "$label" "$program" -b :: -p %p "$@" -- "$program" -s "$address" -p %p "$@"
  for side in server client; do
    expect_not "$side" 'verif|rsend|rrecv|riowrite|riomap|rpoll|Warning|error'
    expect "$side" '[0-9.]+s +[0-9.]+ +[0-9.]+$'
  done
}
custom=(-I 3 -C 50 -S 10000)
# Both programs first send 16 bytes from a buffer of the given size, so the address sanitizer reports a size of 2.
few=2
[ -z "${VERBENA_TOOL:-}" ] || few=16
for program in rstream riostream; do
  stream "checked" $program 127.0.0.1 -T v "${custom[@]}"
  stream "checked, IPv6" $program ::1 -T v "${custom[@]}"
  stream "a name" $program localhost -T v "${custom[@]}"
  stream "numeric address" $program 127.0.0.1 -f ip -T v "${custom[@]}"
  stream "blocking" $program 127.0.0.1 -T b -T v "${custom[@]}"
  stream "nonblocking" $program 127.0.0.1 -T n -T v "${custom[@]}"
  stream "asynchronous" $program 127.0.0.1 -T a -T v "${custom[@]}"
  stream "asynchronous, blocking" $program 127.0.0.1 -T a -T b -T v "${custom[@]}"
  stream "small buffers" $program 127.0.0.1 -T v -B 4096 "${custom[@]}"
  stream "no inline" $program 127.0.0.1 -T v -i 0 "${custom[@]}"
  stream "few bytes" $program 127.0.0.1 -S "$few" -C 100 -I 5
  stream "4 MiB" $program 127.0.0.1 -T v -S 4194304 -C 3 -I 2
done
stream "resolved by rdma_cm" rstream 127.0.0.1 -T r -T v "${custom[@]}"
stream "resolved by rdma_cm, IPv6" rstream ::1 -T resolve -T verify "${custom[@]}"
stream "keepalive" rstream 127.0.0.1 -k 3 -T v "${custom[@]}"
expect client 'Keepalive: ON'
expect client 'time: 3'
# Its own series (-S all, and no -S) take minutes on a busy machine. Here each of their sizes is used once.
for size in 64 192 1536 4096 24576 65536 196608 1048576 1572864; do
  stream "$size bytes" rstream 127.0.0.1 -T b -T v -S $size -C 3 -I 2
done
cm_pair "rstream, not bound" rstream -p %p -T v "${custom[@]}" -- rstream -s 127.0.0.1 -p %p -T v "${custom[@]}"

# A file of every size class, compared; one server receives them in turn.
take_port
start server "$tool" run -- rcopy -p "$port"
await_rdma_listener "$port" server || fail "rcopy does not listen"
for size in 1 100 4096 1000003 30000001; do
  head -c "$size" /dev/urandom >"$work/from"
  rm -f "$work/to"
  start client "$tool" run -- rcopy "$work/from" "127.0.0.1:$work/to" -p "$port"
  finish client "$time_limit"
  [ "$status" = 0 ] || fail "rcopy of $size bytes: exit status $status"
  cmp "$work/from" "$work/to" || fail "rcopy of $size bytes: the files differ"
done
kill -TERM "${pids[server]}"
finish server 5
note "ok rcopy"

# Datagrams. The server counts them; with -T e it echoes them. Few messages, because udpong retransmits after a
# millisecond without reply and then reads all replies, which is slow on a busy machine.
server_ends=no
datagrams_may_get_lost
pong() { # LABEL ADDRESS OPTIONS...
  local label="udpong, $1" address=$2
  shift 2
  cm_pair "$label" udpong -b "$address" -p %p "$@" -- udpong -s "$address" -p %p "$@"
  expect client '[0-9.]+s +[0-9.]+ +[0-9.]+$'
  expect server 'client login from'
  expect_not client 'rsend|rrecv|rconnect|RDMA'
}
pong "echo" 127.0.0.1 -T e -C 50 -S 100
pong "echo, IPv6" ::1 -T e -C 50 -S 100
pong "echo, blocking" 127.0.0.1 -T e -T b -C 50 -S 1000
pong "echo, asynchronous" 127.0.0.1 -T e -T a -C 50 -S 1000
pong "echo, nonblocking, small buffers" 127.0.0.1 -T e -T n -B 8192 -C 50 -S 1000
pong "one way" 127.0.0.1 -C 2000 -S 1000
for size in 16 64 512 2048; do pong "$size bytes" 127.0.0.1 -T e -C 50 -S $size; done
nothing_left
pass "$pairs_run pairs"
