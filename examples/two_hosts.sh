#!/bin/bash
# Makes two "hosts" of one machine, without privileges: two network namespaces with a link between them. Runs one command
# on the second host and another on the first. They communicate by RoCEv2 over the link, as two machines do.
#   examples/two_hosts.sh 'verbena run -- ib_write_bw -d verbena_veth0' 'verbena run -- ib_write_bw -d verbena_veth0 192.0.2.2'
# The first host is 192.0.2.1, the second 192.0.2.2. The last command's exit status counts; the other command is stopped.
# A single command runs on the first host. Inside it, $ON_SECOND COMMAND runs a command on the second host.
set -euo pipefail
if [ $# != 1 ] && [ $# != 2 ]; then
  sed -n '2,6s/^# //p' "$0" >&2
  exit 2
fi
if [ -z "${TWO_HOSTS:-}" ]; then TWO_HOSTS=1 exec unshare -rn --uts bash "$0" "$@"; fi

unshare -n --uts sleep infinity &
second=$!
trap 'kill $second ${server:-} 2>/dev/null || true' EXIT
while [ "$(readlink /proc/$second/ns/uts)" = "$(readlink /proc/self/ns/uts)" ]; do sleep 0.05; done
export ON_SECOND="nsenter -t $second -n --uts --"
ip link add veth0 mtu 4200 type veth peer name veth0 mtu 4200 netns "$second" # 4096 bytes of payload and headers
for host in 1 2; do
  in=
  [ "$host" = 1 ] || in=$ON_SECOND
  $in hostname "host$host"
  $in ip link set lo up
  $in ip address add "192.0.2.$host/24" dev veth0
  $in ip link set veth0 up
done
until ip link show veth0 | grep -q 'state UP' && $ON_SECOND ip link show veth0 | grep -q 'state UP'; do sleep 0.05; done

# True when a program listens on the second host: by TCP, or by rdma_cm (Verbena's rdma_cm ports are Unix sockets).
listening() {
  $ON_SECOND cat /proc/net/tcp /proc/net/tcp6 | awk '$4 == "0A" {found = 1} END {exit !found}' ||
    $ON_SECOND grep -q '@verbena/.*/service/' /proc/net/unix
}
if [ $# = 2 ]; then
  $ON_SECOND bash -c "$1" &
  server=$!
  until listening || ! kill -0 "$server" 2>/dev/null; do sleep 0.05; done
  shift
fi
bash -c "$1"
