#!/bin/bash
# Ceph's messenger over RDMA (async+rdma): a monitor, two OSDs that keep objects in memory, and clients, on one host and
# on two. An object is put, fetched and compared; rados bench writes for two seconds, reads back and compares the data.
# All files are in the script's own folder; no daemon leaves this process tree.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
PATH=$PATH:/usr/sbin
need ceph ceph-mon ceph-osd monmaptool rados ip nsenter
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "a cluster needs a network namespace of its own"
time_limit=60
connect_second_host
"${there[@]}" ip link set lo up  # a client in that namespace connects to the OSD in it
unset CEPH_ARGS CEPH_KEYRING

# configure DEVICE ADDRESS: for a cluster whose monitor is at ADDRESS. Few buffers, because each process registers
# 4 GiB by default.
configure() {
  fsid=$(cat /proc/sys/kernel/random/uuid)
  monitor=[v2:$2:6789]
  cluster=$work/$1
  mkdir -p "$cluster"
  export CEPH_CONF=$cluster/ceph.conf
  cat >"$CEPH_CONF" <<CONFIGURATION
[global]
fsid = $fsid
mon host = $monitor
auth cluster required = none
auth service required = none
auth client required = none
ms type = async+rdma
ms async rdma device name = $1
ms async rdma receive queue len = 512
ms async rdma receive buffers = 1024
ms async rdma send buffers = 256
run dir = $cluster
crash dir = $cluster
admin socket = $cluster/\$name.\$pid.asok
log file = $logs/\$cluster.\$name
mon cluster log file = $logs/cluster
mon data = $cluster/mon
mon data avail warn = 1
mon data avail crit = 0
osd data = $cluster/osd\$id
osd objectstore = memstore
memstore device bytes = 1073741824
osd crush chooseleaf type = 0
osd pool default size = 2
osd pool default min size = 2
osd pool default pg num = 8
osd pool default pg autoscale mode = off
CONFIGURATION
}

await_ceph_output() { # PATTERN COMMAND...: waits until the output matches
  local pattern=$1 tries=60
  shift
  until bounded "$tool" run -- ceph "$@" && grep -Eq -- "$pattern" "$logs/out"; do
    [ $((tries--)) -gt 0 ] || fail "ceph $* did not print: $pattern"
    sleep 0.2
  done
}

start_osd() { # NUMBER ADDRESS IN...
  local number=$1 address=$2 uuid
  shift 2
  uuid=$(cat /proc/sys/kernel/random/uuid)
  mkdir "$cluster/osd$number"
  bounded "$tool" run -- ceph osd new "$uuid" "$number"
  bounded "$@" "$tool" run -- ceph-osd -i "$number" --mkfs --osd-uuid "$uuid"
  start "osd$number" "$@" "$tool" run -- ceph-osd -f -i "$number" --public-addr "$address" --cluster-addr "$address"
}

# store_and_compare IN...: with clients run by IN.
store_and_compare() {
  bounded "$@" "$tool" run -- rados -p data put object "$work/stored"
  rm -f "$work/fetched"
  bounded "$@" "$tool" run -- rados -p data get object "$work/fetched"
  cmp "$work/stored" "$work/fetched" || fail "rados: the fetched object differs"
  bounded "$@" "$tool" run -- rados -p data stat object
  expect_output ' size 25000001$'
  bounded "$@" "$tool" run -- rados -p data bench 2 write --no-cleanup -t 4 -b 1000000
  expect_output '^Total writes made: +[1-9][0-9]'
  bounded "$@" "$tool" run -- rados -p data bench 2 seq -t 4  # compares by default
  expect_output '^Total reads made: +[1-9]'
  bounded "$@" "$tool" run -- rados -p data bench 1 rand -t 4
  expect_output '^Total reads made: +[1-9]'
  bounded "$@" "$tool" run -- rados -p data cleanup
}

end_cluster() {
  local name
  for name in osd0 osd1 monitor; do
    kill -TERM "${pids[$name]}"
    finish "$name" 20
    [ "$status" = 0 ] || fail "$name: exit status $status"
  done
}

# run_cluster WHAT DEVICE ADDRESS OTHER_ADDRESS IN...: the second OSD is at OTHER_ADDRESS and is run by IN.
run_cluster() {
  local what=$1 device=$2 address=$3 other=$4
  shift 4
  configure "$device" "$address"
  bounded monmaptool --create --fsid "$fsid" --addv a "$monitor" "$cluster/monmap"
  bounded "$tool" run -- ceph-mon --mkfs -i a --monmap "$cluster/monmap"
  start monitor "$tool" run -- ceph-mon -f -i a
  await_ceph_output 'quorum 0 a$' mon stat
  start_osd 0 "$address"
  start_osd 1 "$other" "$@"
  await_ceph_output ' 2 up.* 2 in' osd stat
  bounded "$tool" run -- ceph osd pool create data
  store_and_compare
  [ $# = 0 ] || store_and_compare "$@"
  [ "$(counter_sum packets_sent)" -gt 1000 ] || fail "the cluster did not send through Verbena"
  end_cluster
  note "ok $what"
}

head -c 25000001 /dev/urandom >"$work/stored"
run_cluster "one host" verbena_lo 127.0.0.1 127.0.0.1
VERBENA_DATAPATH=udp run_cluster "two hosts" verbena_veth0 192.0.2.1 192.0.2.2 "${there[@]}"
row Ceph ceph-common "async+rdma: a monitor, two OSDs, \`rados\` put, get, compare and bench; one host and two"
remove_second_host
nothing_left
pass
