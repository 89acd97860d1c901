#!/bin/bash
# Runs Debian's ib_write_bw, server and client, on Verbena's verbena_lo device and reports the result.
# Uses a separate network namespace where the kernel permits it to ordinary users: the UDP counters
# below then count only this demo.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=$PWD/${VERBENA_BUILD:-build}/verbena
iterations=${VERBENA_DEMO_ITERATIONS:-5000}
size=65536

if [ ! -x "$tool" ]; then
  echo "demo: $tool does not exist; run 'make build' first" >&2
  exit 1
fi
if ! command -v ib_write_bw >/dev/null; then
  echo "demo: ib_write_bw is missing (Debian package perftest)" >&2
  exit 1
fi
if [ -z "${VERBENA_DEMO_NETNS:-}" ]; then
  export VERBENA_DEMO_USER
  VERBENA_DEMO_USER=$(id -u)
  if unshare -rn sh -c 'ip link set lo up' 2>/dev/null; then
    VERBENA_DEMO_NETNS=own exec unshare -rn bash "$PWD/scripts/demo.sh"
  fi
  VERBENA_DEMO_NETNS=host
fi
if [ "$VERBENA_DEMO_NETNS" = own ]; then ip link set lo up; fi

logs=$(mktemp -d)
server=
client=
finish() {
  for pid in $client $server; do
    kill -- "-$pid" 2>/dev/null || true  # the process group: the tool and its child processes
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$logs"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# True when a program listens on TCP port $1 (read from /proc: a connection would confuse the server).
listening() {
  local files=(/proc/net/tcp)
  if [ -e /proc/net/tcp6 ]; then files+=(/proc/net/tcp6); fi
  awk -v port="$(printf ':%04X' "$1")" \
    '$4 == "0A" && substr($2, length($2) - 4) == port {found = 1} END {exit !found}' "${files[@]}"
}
udp_4791_bound() {
  local files=(/proc/net/udp)
  if [ -e /proc/net/udp6 ]; then files+=(/proc/net/udp6); fi
  awk 'substr($2, length($2) - 4) == ":12B7" {found = 1} END {exit !found}' "${files[@]}"
}
lo_bytes() { awk '$1 == "lo:" {print $2}' /proc/net/dev; }
udp_received() { awk '$1 == "Udp:" && $2 ~ /^[0-9]/ {print $2}' /proc/net/snmp; }

fail() {
  echo "demo: $1" >&2
  for side in server client; do
    if [ -s "$logs/$side" ]; then
      echo "--- $side:" >&2
      tail -n 25 "$logs/$side" >&2
    fi
  done
  exit 1
}

port=$((23000 + RANDOM % 6000))
while listening "$port"; do port=$((port + 1)); done
command=(ib_write_bw -d verbena_lo -x 0 -p "$port" -n "$iterations" -s "$size" -F --report_gbits)

# Two processes of one host use shared memory by default; the demo shows the wire.
export VERBENA_DATAPATH=udp
echo "Both with VERBENA_DATAPATH=udp, which forces the wire:"
echo "server:  verbena run -- ${command[*]}"
echo "client:  verbena run -- ${command[*]} 127.0.0.1"
echo
received_before=$(udp_received)
bytes_before=$(lo_bytes)
setsid "$tool" run -- "${command[@]}" >"$logs/server" 2>&1 &
server=$!
for _ in $(seq 100); do
  if listening "$port"; then break; fi
  kill -0 "$server" 2>/dev/null || fail "the server ended before it listened"
  sleep 0.1
done
listening "$port" || fail "the server does not listen after 10 seconds"

# Polls a background process, so that a signal ends the demo at once. Sets rc to the exit status, or
# to "late" when the process still runs after $2 seconds.
port_seen=no
await() {
  local deadline=$((SECONDS + $2))
  rc=0
  while kill -0 "$1" 2>/dev/null; do
    if udp_4791_bound; then port_seen=yes; fi
    if [ "$SECONDS" -ge "$deadline" ]; then
      rc=late
      return
    fi
    sleep 0.05
  done
  wait "$1" || rc=$?
}
setsid "$tool" run -- "${command[@]}" 127.0.0.1 >"$logs/client" 2>&1 &
client=$!
await "$client" 60
[ "$rc" != late ] || fail "the client still runs after 60 seconds"
client=
[ "$rc" = 0 ] || fail "the client failed (status $rc)"
await "$server" 10
[ "$rc" != late ] || fail "the server did not end with its client"
server=
[ "$rc" = 0 ] || fail "the server failed (status $rc)"
received=$(($(udp_received) - received_before))
bytes=$(($(lo_bytes) - bytes_before))

cat "$logs/client"
# The result line: bytes, iterations, peak, average (Gb/s), million messages per second.
average=$(awk -v size="$size" '$1 == size && NF >= 4 {print $4}' "$logs/client" | tail -n 1)
[ -n "$average" ] || fail "no result line in ib_write_bw's output"

echo
echo "What happened:"
echo "  * Debian's own ib_write_bw, unmodified, wrote $iterations x $size bytes by RDMA WRITE from one"
echo "    process into the memory of another at $average Gb/s, each write acknowledged."
# Claim only what was measured: the payload crossed the loopback interface, in UDP datagrams (of at
# most 64 KiB). The wire and interop tests prove that these are well-formed RoCEv2.
payload=$((iterations * size))
if [ "$port_seen" = yes ] && [ "$bytes" -ge "$payload" ] && [ "$received" -ge $((payload / 65536)) ]; then
  echo "  * The data crossed the network as RoCEv2, on UDP port 4791: the kernel counted $received batches of UDP"
  if [ "$VERBENA_DEMO_NETNS" = own ]; then
    echo "    datagrams and $bytes bytes on lo, in a network namespace for this demo only."
  else
    echo "    datagrams and $bytes bytes on lo (other programs included)."
  fi
else
  echo "  * The data did NOT all go over UDP port 4791 (port seen: $port_seen, UDP datagrams received:" \
       "$received, bytes on lo: $bytes of $payload)."
fi
if [ -n "$(ls -A /sys/class/infiniband 2>/dev/null)" ]; then
  echo "  * This machine has RDMA devices ($(ls -m /sys/class/infiniband)); none of them was used."
else
  echo "  * No RDMA hardware and no kernel module: /sys/class/infiniband is empty or absent."
fi
if [ "${VERBENA_DEMO_USER:-0}" = 0 ]; then
  echo "  * Root was not needed, although you are root."
else
  echo "  * No root: this ran as user id $VERBENA_DEMO_USER."
fi
