#!/bin/bash
# mckey: multicast groups joined by rdma_cm; one sender, several receivers, in this namespace and over a veth
# pair. mckey waits three seconds before it sends.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need mckey ip nsenter
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "cannot create network namespaces"

connect_second_host
ip route add 224.0.0.0/4 dev veth0
"${there[@]}" ip route add 224.0.0.0/4 dev veth0

# group NAME GROUP HERE THERE OPTIONS...: starts two receivers here and one there, then a sender here.
# finish_group checks them; several groups run at the same time.
receivers() { # NAME GROUP HERE THERE OPTIONS...
  local name=$1 group=$2 here=$3 remote_address=$4
  shift 4
  start "$name.local1" "$tool" run -- mckey -m "$group" -b "$here" "$@"
  start "$name.local2" "$tool" run -- mckey -m "$group" -b "$here" "$@"
  start "$name.remote" "${there[@]}" "$tool" run -- mckey -m "$group" -b "$remote_address" "$@"
}
sender() { # NAME GROUP HERE OPTIONS...
  local name=$1 group=$2 here=$3 member
  shift 3
  for member in local1 local2 remote; do
    await_line "$logs/$name.$member" 'joined dgid' 20 || fail "$name: $member does not join"
  done
  start "$name.sender" "$tool" run -- mckey -m "$group" -b "$here" -s "$@"
}
finish_group() {
  local name=$1 member
  for member in sender local1 local2 remote; do
    finish "$name.$member" 30
    [ "$status" = 0 ] || fail "$name: exit status of $member is $status"
    grep -q 'data transfers complete' "$logs/$name.$member" || fail "$name: $member did not complete"
    grep -q 'return status 0' "$logs/$name.$member" || fail "$name: $member does not return 0"
  done
  note "ok $name: $(grep -om 1 'joined dgid: [^ ]*' "$logs/$name.local1")"
}

receivers ipv4 239.77.1.1 192.0.2.1 192.0.2.2
receivers ipv6 ff0e::77:2 2001:db8::1 2001:db8::2
receivers many 239.77.1.3 192.0.2.1 192.0.2.2 -c 3 -C 20 -S 1000
sender ipv4 239.77.1.1 192.0.2.1
sender ipv6 ff0e::77:2 2001:db8::1
sender many 239.77.1.3 192.0.2.1 -c 1 -C 20 -S 1000
for name in ipv4 ipv6 many; do finish_group "$name"; done

# A sender that joins to send only; and the port space of IPoIB.
receivers sendonly 239.77.1.4 192.0.2.1 192.0.2.2
receivers ipoib 239.77.1.5 192.0.2.1 192.0.2.2 -p 2
sender sendonly 239.77.1.4 192.0.2.1 -o
sender ipoib 239.77.1.5 192.0.2.1 -p 2
finish_group sendonly
finish_group ipoib

# Without a bind address the route to the group selects the interface.
start routed.receiver "$tool" run -- mckey -m 239.77.1.6
await_line "$logs/routed.receiver" 'joined dgid' 20 || fail "routed: the receiver does not join"
start routed.sender "$tool" run -- mckey -m 239.77.1.6 -s
for member in sender receiver; do
  finish "routed.$member" 30
  [ "$status" = 0 ] || fail "routed: exit status of the $member is $status"
done
note "ok without a bind address"

# -l: without multicast loopback, if the device supports it; -M: an AF_IB address, which is rejected.
start no_loopback "$tool" run -- mckey -m 239.77.1.7 -b 192.0.2.1 -s -l
finish no_loopback 30
[ "$status" = 0 ] || grep -q 'unable to create QP' "$logs/no_loopback" || fail "-l: exit status $status"
note "ok -l: $(grep -E 'unable|complete' "$logs/no_loopback" | head -n 1)"
start unmapped "$tool" run -- mckey -M ff0e::77:8 -b 2001:db8::1 -s
finish unmapped 30
case $status in 0 | late | 1[0-9][0-9]) fail "-M: exit status $status" ;; esac
grep -q 'failure joining' "$logs/unmapped" || fail "-M: no reason is given"
note "ok -M is refused: $(grep 'failure joining' "$logs/unmapped")"
remove_second_host
nothing_left
pass
