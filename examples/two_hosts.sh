#!/bin/bash
# Two "hosts" on one machine, without privileges: two network namespaces and a wire between them. Runs a command on the
# second and another on the first, as two machines would; what goes between is RoCEv2 on the wire.
#   examples/two_hosts.sh 'verbena run -- ib_write_bw -d verbena_veth0' 'verbena run -- ib_write_bw -d verbena_veth0 192.0.2.2'
# The first host is 192.0.2.1, the second 192.0.2.2. The second command's exit status counts; the first is stopped then.
set -euo pipefail
if [ $# != 2 ]; then
  sed -n '2,5s/^# //p' "$0" >&2
  exit 2
fi
if [ -z "${TWO_HOSTS:-}" ]; then TWO_HOSTS=1 exec unshare -rn bash "$0" "$@"; fi

unshare -n sleep infinity &
second=$!
trap 'kill $second ${server:-} 2>/dev/null || true' EXIT
while [ "$(readlink /proc/$second/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
there=(nsenter -t "$second" -n)
ip link add veth0 mtu 4200 type veth peer name veth0 mtu 4200 netns "$second" # 4096 bytes of payload and headers
for host in 1 2; do
  in=()
  [ "$host" = 1 ] || in=("${there[@]}")
  "${in[@]}" ip link set lo up
  "${in[@]}" ip address add "192.0.2.$host/24" dev veth0
  "${in[@]}" ip link set veth0 up
done
until ip link show veth0 | grep -q 'state UP' && "${there[@]}" ip link show veth0 | grep -q 'state UP'; do sleep 0.05; done

"${there[@]}" bash -c "$1" &
server=$!
sleep 1
bash -c "$2"
