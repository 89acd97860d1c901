# Sourced by the scripts of this folder. They run unmodified programs through `verbena run` and check their
# output and exit status. Exit status 77: skipped, with the reason as the last line.
#
# Each script runs in its own user and network namespace if the system permits it, so that port 4791, the slot
# directory and verbena_lo belong to this script only. Needs no privileges.
# shellcheck shell=bash

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "${VERBENA_BUILD:-$root/build}" && pwd)
tool=${VERBENA_TOOL:-$build/verbena}
script=${0##*/}

skip() {
  echo "SKIPPED $script: $*"
  exit 77
}

need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || skip "$program is not installed"
  done
}

# Called once, first: continues in its own namespace if possible, and then sets own_namespace to "yes".
enter_namespace() {
  if [ -z "${VERBENA_TEST_NETNS:-}" ]; then
    local option
    for option in -rn -n; do
      if unshare "$option" ip link set lo up 2>/dev/null; then
        VERBENA_TEST_NETNS=own exec unshare "$option" bash "$0" "$@"
      fi
    done
    export VERBENA_TEST_NETNS=host
  fi
  own_namespace=no
  if [ "$VERBENA_TEST_NETNS" = own ]; then
    own_namespace=yes
    ip link set lo up
  fi
  work=$(mktemp -d)  # for the script's own files
  logs=$work/logs
  mkdir "$logs"
  trap cleanup EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  [ -x "$tool" ] || skip "$tool is not built"
  [ -e "$build/lib/libibverbs.so.1" ] || skip "$build/lib/libibverbs.so.1 is not built"
}

# ------------------------------------------------------------------------------------ processes

declare -A pids=()  # name -> process id; its output is in $logs/name

# Process $1 and its descendants.
family() {
  local child
  echo "$1"
  for child in $(pgrep -P "$1"); do family "$child"; done
}

cleanup() {
  local status=$? name
  trap - EXIT
  # shellcheck disable=SC2046
  for name in "${!pids[@]}"; do kill -KILL $(family "${pids[$name]}") 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
  exit "$status"
}
show_logs() {
  local file
  for file in "$logs"/*; do
    [ -s "$file" ] || continue
    echo "--- ${file##*/}:"
    tail -n 40 "$file" | cut -c 1-300
  done
}

fail() {
  echo "FAILED $script: $*" >&2
  show_logs >&2
  exit 1
}

pass() { echo "passed $script${*:+: $*}"; }
note() { echo "  $*"; }

# start NAME COMMAND...: in the background, its output to $logs/NAME, line by line.
start() {
  local name=$1
  shift
  stdbuf -oL "$@" >"$logs/$name" 2>&1 &
  pids[$name]=$!
}

# Waits for NAME at most SECONDS; sets status to its exit status or "late".
finish() {
  local pid=${pids[$1]} tenths=$(($2 * 20))
  status=0
  while kill -0 "$pid" 2>/dev/null; do
    if [ $((tenths--)) -le 0 ]; then
      status=late
      kill -KILL "$pid" 2>/dev/null || true
      wait "$pid" 2>/dev/null || true
      unset "pids[$1]"
      return
    fi
    sleep 0.05
  done
  wait "$pid" 2>/dev/null || status=$?
  unset "pids[$1]"
  if [ "$status" = 255 ] && ended_in_event_thread "$logs/$1"; then status=0; fi
}

# At its end rping destroys its event channel while its event thread still runs. On a busy machine the thread may
# read the next event only then, and ends the program with status 255, on any NIC. True if that is all that rping
# reports.
ended_in_event_thread() { # LOG
  [ "$(tail -n 1 "$1")" = "rdma_get_cm_event: Bad file descriptor" ] &&
    ! head -n -1 "$1" | grep -Ei 'fail|error|unexpected|invalid|mismatch|cma event' >/dev/null
}

# Waits until TCP port $1 is listened on; fails if process NAME ($2) ends before.
await_listener() {
  local hex tries=200
  hex=$(printf ':%04X' "$1")
  until cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
    awk -v port="$hex" '$4 == "0A" && substr($2, length($2) - 4) == port {found = 1}
                        END {exit !found}'; do
    kill -0 "${pids[$2]}" 2>/dev/null || return 1
    [ $((tries--)) -gt 0 ] || return 1
    sleep 0.05
  done
}

# The same for a port of rdma_cm (in any port space): process NAME listens on it. COUNT: on how many
# addresses or devices. A datagram rsocket's port is the one of its UDP socket.
await_rdma_listener() { # PORT NAME [COUNT]
  local tries=200 service udp
  service=$(printf 'service/[0-9]+/[0-9a-f]{12}%04x/' "$1")
  udp=$(printf ':%04X 0+:0000 ' "$1")
  until [ "$(grep -Ec "@verbena/.*$service" /proc/net/unix)" -ge "${3:-1}" ] ||
    grep -Eqs "$udp" /proc/net/udp /proc/net/udp6; do
    kill -0 "${pids[$2]}" 2>/dev/null || return 1
    [ $((tries--)) -gt 0 ] || return 1
    sleep 0.05
  done
}

# Waits until a file has a line that matches; `await_line FILE PATTERN SECONDS`.
await_line() {
  local tries=$(($3 * 20))
  until grep -Eq -- "$2" "$1" 2>/dev/null; do
    [ $((tries--)) -gt 0 ] || return 1
    sleep 0.05
  done
}

# Waits until an interface has its carrier, which the kernel reports a moment after both ends are up.
await_carrier() {
  local tries=200
  until ip link show dev "$1" | grep -q 'state UP'; do
    [ $((tries--)) -gt 0 ] || fail "$1 has no carrier"
    sleep 0.05
  done
}

# A TCP port for the next pair, over which the programs exchange their addresses.
next_port=$((20000 + RANDOM % 8000))
take_port() {
  next_port=$((next_port + 1))
  port=$next_port
}

# ------------------------------------------------------------------------------------ a second host

# Another network namespace. "${there[@]}" COMMAND runs a command there. The namespace exists until
# remove_second_host or the end of the script.
there=()
create_second_host() {
  local tries=100
  start second_host unshare -n sleep infinity
  while [ "$(readlink "/proc/${pids[second_host]}/ns/net")" = "$(readlink /proc/self/ns/net)" ]; do
    [ $((tries--)) -gt 0 ] || skip "cannot create a second network namespace"
    sleep 0.05
  done
  there=(nsenter -t "${pids[second_host]}" -n)
}

# The same with a veth pair: this side has 192.0.2.1 and 2001:db8::1 on veth0, the other side .2 and ::2.
connect_second_host() {
  create_second_host
  ip link add veth0 type veth peer name veth0 netns "${pids[second_host]}"
  set_wire addrgenmode none
  set_wire up
  await_carrier veth0
  ip address add 192.0.2.1/24 dev veth0
  ip address add 2001:db8::1/64 dev veth0 nodad
  "${there[@]}" ip address add 192.0.2.2/24 dev veth0
  "${there[@]}" ip address add 2001:db8::2/64 dev veth0 nodad
}
set_wire() { # arguments of "ip link set veth0", for both ends
  ip link set veth0 "$@"
  "${there[@]}" ip link set veth0 "$@"
}
remove_second_host() {
  kill "${pids[second_host]}"
  finish second_host 5
}

# ------------------------------------------------------------------------------------ pairs

host=127.0.0.1    # the address of the server
time_limit=60     # of one pair, in seconds
run_options=()    # of verbena run, both sides
client_in=()      # command prefix that runs the client elsewhere (another namespace)
await_server=await_listener  # how start_pair detects that the server listens

# start_pair NAME COMMAND...: server and client of one program that takes -p PORT and the server's
# address last. Their names are NAME.server and NAME.client.
start_pair() {
  local name=$1
  shift
  take_port
  start "$name.server" "$tool" run "${run_options[@]}" -- "$@" -p "$port"
  "$await_server" "$port" "$name.server" || fail "$name: the server does not listen: $*"
  start "$name.client" "${client_in[@]}" "$tool" run "${run_options[@]}" -- "$@" -p "$port" "$host"
}

# finish_pair NAME: both must succeed.
finish_pair() {
  local side
  for side in client server; do
    finish "$1.$side" "$time_limit"
    [ "$status" = 0 ] || fail "$1: the $side's exit status is $status"
  done
}

# Called by scripts whose programs wait for every message of an unreliable connection. On any NIC a message is lost if no
# receive is posted, for example because the program did not run for a while. Without steering, forwarding between
# processes also loses some. Neither is an error: such a pair is run again.
attempts=1
datagrams_may_get_lost() {
  attempts=4
  time_limit=15
}

# pair LABEL COMMAND...: runs one pair, which must succeed.
pairs_run=0
pair() {
  local label=$1 started=${EPOCHREALTIME/[.,]/} left=$attempts side verdict
  shift
  while true; do
    rm -f "$logs"/pair.*
    start_pair pair "$@"
    verdict=
    for side in client server; do
      [ -z "$verdict" ] || kill -KILL "${pids[pair.$side]}" 2>/dev/null || true
      finish "pair.$side" "$time_limit"
      [ "$status" = 0 ] || verdict=${verdict:-"exit status of the $side: $status"}
    done
    [ -n "$verdict" ] || break
    [ $((left -= 1)) -gt 0 ] || fail "$label: $verdict: $*"
    note "again: $label: $verdict"
  done
  pairs_run=$((pairs_run + 1))
  note "ok $label ($(((${EPOCHREALTIME/[.,]/} - started) / 1000)) ms)"
}

# For programs whose two sides have different options, over rdma_cm:
#   cm_pair LABEL SERVER... -- CLIENT...
# runs both, which must succeed. %p in a word becomes the port. A server that never ends is stopped after the
# client has succeeded (server_ends=no).
server_ends=yes
server_port=%p   # the port of the server; for programs with a fixed port
server_env=()    # variables for the server and the client, "env" arguments
client_env=()
cm_pair() {
  local label=$1 started=${EPOCHREALTIME/[.,]/} word into=server left=$attempts verdict
  local -a server=() client=()
  shift
  take_port
  for word in "$@"; do
    word=${word//%p/$port}
    if [ "$into $word" = "server --" ]; then
      into=client
    elif [ "$into" = server ]; then
      server+=("$word")
    else
      client+=("$word")
    fi
  done
  while true; do
    rm -f "$logs"/pair.*
    verdict=
    start pair.server env "${server_env[@]}" "$tool" run "${run_options[@]}" -- "${server[@]}"
    await_rdma_listener "${server_port//%p/$port}" pair.server ||
      fail "$label: the server does not listen: ${server[*]}"
    start pair.client "${client_in[@]}" env "${client_env[@]}" "$tool" run "${run_options[@]}" -- "${client[@]}"
    finish pair.client "$time_limit"
    [ "$status" = 0 ] || verdict="exit status of the client: $status: ${client[*]}"
    if [ -n "$verdict" ]; then
      kill -KILL "${pids[pair.server]}" 2>/dev/null || true
      finish pair.server 5
    elif [ "$server_ends" = no ]; then
      kill -0 "${pids[pair.server]}" 2>/dev/null || fail "$label: the server ended"
      kill -TERM "${pids[pair.server]}"
      finish pair.server "$time_limit"
      [ "$status" = 143 ] || fail "$label: the stopped server's exit status is $status"
    else
      finish pair.server "$time_limit"
      [ "$status" = 0 ] || verdict="exit status of the server: $status: ${server[*]}"
    fi
    [ -n "$verdict" ] || break
    [ $((left -= 1)) -gt 0 ] || fail "$label: $verdict"
    note "again: $label: $verdict"
  done
  pairs_run=$((pairs_run + 1))
  note "ok $label ($(((${EPOCHREALTIME/[.,]/} - started) / 1000)) ms)"
}

# The output of the last pair must, or must not, match: expect server|client PATTERN.
expect() { grep -Eq -- "$2" "$logs/pair.$1" || fail "the $1 does not print: $2"; }
expect_not() { if grep -Eq -- "$2" "$logs/pair.$1"; then fail "the $1 prints: $2"; fi; }

# ------------------------------------------------------------------------------------ leftovers

# In an own namespace: no socket of Verbena is left when all programs have ended.
nothing_left() {
  [ "$own_namespace" = yes ] || return 0
  local tries=40
  while grep -qs ':12B7 ' /proc/net/udp /proc/net/udp6 || grep -qs '@verbena' /proc/net/unix; do
    if [ $((tries--)) -le 0 ]; then
      grep -s ':12B7 ' /proc/net/udp /proc/net/udp6 || true
      grep -s '@verbena' /proc/net/unix || true
      fail "sockets are left"
    fi
    sleep 0.05
  done
}
