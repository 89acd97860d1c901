# Sourced by the scripts of this folder. They run unmodified programs through `verbena run` and judge by
# what those print and return. Exit status 77: skipped, with the reason as the last line.
#
# Each script runs in a user and network namespace of its own where the system permits that: port 4791,
# the directory of processes and verbena_lo are then nobody else's. Needs no privileges.
# shellcheck shell=bash

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "${VERBENA_BUILD:-$root/build}" && pwd)
tool=$build/verbena
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

# Called once, first thing: goes on in a namespace of its own if it can. own_namespace is then "yes".
enter_namespace() {
  if [ -z "${VERBENA_TEST_NETNS:-}" ]; then
    if unshare -rn ip link set lo up 2>/dev/null; then
      VERBENA_TEST_NETNS=own exec unshare -rn bash "$0" "$@"
    fi
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

cleanup() {
  local status=$? name
  trap - EXIT
  for name in "${!pids[@]}"; do kill -KILL "${pids[$name]}" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
  exit "$status"
}
show_logs() {
  local file
  for file in "$logs"/*; do
    [ -s "$file" ] || continue
    echo "--- ${file##*/}:"
    tail -n 40 "$file"
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

# Waits until a file has a line that matches; `await_line FILE PATTERN SECONDS`.
await_line() {
  local tries=$(($3 * 20))
  until grep -Eq -- "$2" "$1" 2>/dev/null; do
    [ $((tries--)) -gt 0 ] || return 1
    sleep 0.05
  done
}

# Waits until an interface has its carrier, which the kernel tells a moment after both ends are up.
await_carrier() {
  local tries=200
  until ip link show dev "$1" | grep -q 'state UP'; do
    [ $((tries--)) -gt 0 ] || fail "$1 has no carrier"
    sleep 0.05
  done
}

# A TCP port for the next pair: programs exchange their addresses over it.
next_port=$((20000 + RANDOM % 8000))
take_port() {
  next_port=$((next_port + 1))
  port=$next_port
}

# ------------------------------------------------------------------------------------ pairs

host=127.0.0.1    # where the client finds the server
patience=60       # seconds for one pair
run_options=()    # of verbena run, both sides
client_in=()      # command prefix that takes the client elsewhere (another namespace)

# start_pair NAME COMMAND...: server and client of one program that takes -p PORT and the server's
# address last. Their names are NAME.server and NAME.client.
start_pair() {
  local name=$1
  shift
  take_port
  start "$name.server" "$tool" run "${run_options[@]}" -- "$@" -p "$port"
  await_listener "$port" "$name.server" || fail "$name: the server does not listen: $*"
  start "$name.client" "${client_in[@]}" "$tool" run "${run_options[@]}" -- "$@" -p "$port" "$host"
}

# finish_pair NAME: both must end well.
finish_pair() {
  local side
  for side in client server; do
    finish "$1.$side" "$patience"
    [ "$status" = 0 ] || fail "$1: the $side's exit status is $status"
  done
}

# pair LABEL COMMAND...: runs one pair to its good end.
pairs_run=0
pair() {
  local label=$1 started=${EPOCHREALTIME/[.,]/}
  shift
  rm -f "$logs"/pair.*
  start_pair pair "$@"
  local side
  for side in client server; do
    finish "pair.$side" "$patience"
    [ "$status" = 0 ] || fail "$label: the $side's exit status is $status: $*"
  done
  pairs_run=$((pairs_run + 1))
  note "ok $label ($(((${EPOCHREALTIME/[.,]/} - started) / 1000)) ms)"
}

# ------------------------------------------------------------------------------------ leftovers

# In a namespace of our own: no socket of Verbena's is left when all programs have ended.
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
