#!/bin/bash
# scripts/slow_link.sh [OPTIONS] -- SERVER CLIENT
#
# Runs two commands on both sides of a slow link and prints what the link counted. Each command is one word for the
# shell. SERVER runs as 192.0.2.1, CLIENT as 192.0.2.2; the interface is tun0 on both sides, Verbena's device
# verbena_tun0. OPTIONS are those of build/bottleneck, without --far (docs/networks.md). Example:
#   scripts/slow_link.sh --rate-mbit 200 --delay-ms 20 -- 'build/verbena run -- ib_write_bw -d verbena_tun0 -x 0 -D 5' \
#     'build/verbena run -- ib_write_bw -d verbena_tun0 -x 0 -D 5 192.0.2.1'
# CLIENT starts when SERVER listens on a TCP port, or after 2 seconds. Its exit status counts; 77: the system does not
# permit namespaces or TUN devices to this user.
set -euo pipefail

bottleneck=${VERBENA_BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build}/bottleneck
if [ -z "${VERBENA_SLOW_LINK:-}" ]; then
  [ -x "$bottleneck" ] || { echo "slow_link.sh: $bottleneck is not built: cmake --build build --target bottleneck" >&2; exit 1; }
  unshare -rn true || { echo "slow_link.sh: this system does not permit this user to create namespaces" >&2; exit 77; }
  VERBENA_SLOW_LINK=inside exec unshare -rn --kill-child bash "$0" "$@"
fi
unset VERBENA_SLOW_LINK

options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  options+=("$1")
  shift
done
[ $# = 3 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
server=$2 client=$3

started=()
work=$(mktemp -d)
cleanup() {
  local pid
  for pid in "${started[@]}"; do kill -TERM -- "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# await TENTHS COMMAND...: until the command succeeds.
await() {
  local tenths=$1
  shift
  until "$@"; do
    [ $((tenths--)) -gt 0 ] || return 1
    sleep 0.1
  done
}
is_apart() { [ "$(readlink "/proc/$far/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
is_ready_or_ended() { grep -qs ready "$work/link" || ! kill -0 "$link" 2>/dev/null; }
is_listening_or_ended() { grep -q ' 0A ' /proc/net/tcp /proc/net/tcp6 || ! kill -0 "$serving" 2>/dev/null; }

ip link set lo up
unshare -n sleep infinity &
far=$!
started+=("$far")
await 50 is_apart
nsenter -t "$far" -n ip link set lo up
"$bottleneck" --far "/proc/$far/ns/net" "${options[@]}" >"$work/link" &
link=$!
await 50 is_ready_or_ended
grep -qs ready "$work/link" || { status=0; wait "$link" || status=$?; exit "$status"; }
started+=("$link")

setsid bash -c "$server" &  # a process group of its own, which ends as a whole
serving=$!
started+=("-$serving")
await 20 is_listening_or_ended || true
status=0
nsenter -t "$far" -n bash -c "$client" || status=$?
kill -TERM "$link"
wait "$link" || true
tail -n 1 "$work/link"
exit "$status"
