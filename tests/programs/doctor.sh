#!/bin/bash
# verbena doctor: a healthy machine and host, and each possible problem with its remedy.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ip nsenter nft python3
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "cannot create network namespaces"

# doctor STATUS [ARGUMENTS...]: its findings as lines "place|verdict|about|text" in $logs/findings. Those of this
# machine have the place "here".
doctor() {
  local expected=$1 status=0
  shift
  timeout 60 "$tool" doctor --json "$@" >"$logs/json" 2>"$logs/err" || status=$?
  [ "$status" = "$expected" ] || fail "verbena doctor $*: exit status $status instead of $expected"
  python3 - "$logs/json" >"$logs/findings" <<'PYTHON' || fail "verbena doctor --json $*: not as expected"
import json, sys
report = json.load(open(sys.argv[1]))
places = [("here", report["machine"])] + [(h["host"], h["findings"]) for h in report["hosts"]]
problem = False
for place, findings in places:
    for f in findings:
        assert f["verdict"] in ("ok", "hint", "problem") and f["about"] and f["text"], f
        problem = problem or f["verdict"] == "problem"
        print(place, f["verdict"], f["about"], f["text"], sep="|")
assert report["ok"] == (not problem), report["ok"]
PYTHON
}
finds() { grep -Eq -- "^$1\|$2\|$3\|.*$4" "$logs/findings" || fail "no finding: $1, $2, $3: $4"; }
no_problem_with() { if grep -q "^$1|problem|" "$logs/findings"; then fail "a problem with $1"; fi; }

# --- a healthy machine
doctor 0
for about in library devices 'UDP port 4791' steering 'process slots' 'ptrace scope' 'shared memory' \
  /dev/shm 'locked memory' firewall; do
  grep -Eq "^here\|(ok|hint)\|$about\|" "$logs/findings" || fail "no finding about $about"
done
"$tool" doctor >"$logs/text" || fail "verbena doctor: exit status $?"
grep -Eq '^  ok +devices +verbena_lo has 127\.0\.0\.1' "$logs/text" || fail "no device in the text"
grep -q '^Nothing has to be changed\.$' "$logs/text" || fail "no last line"
# Inside `verbena run`, as in an image with the variables of `verbena env`, Verbena's devices are not reported as the
# kernel's.
"$tool" run -- sh -c 'ls /sys/class/infiniband && "$0" doctor' "$tool" >"$logs/inside" || fail "verbena doctor within verbena run: exit status $?"
grep -q '^verbena_lo$' "$logs/inside" || fail "the view does not show verbena_lo"
if grep -q 'devices of the kernel' "$logs/inside"; then fail "Verbena's devices are reported as the kernel's"; fi
note "ok a healthy machine"

# --- a healthy host, by IPv4 and IPv6, and the own address
connect_second_host
listen() { # in the other namespace
  start peer "${there[@]}" "$tool" perf --listen
  local tries=200
  until "${there[@]}" grep -Eqs '@verbena/.*service/' /proc/net/unix || [ $((tries--)) -le 0 ]; do sleep 0.05; done
}
listen
doctor 0 192.0.2.2 2001:db8::2 192.0.2.1 127.0.0.1
for host in 192.0.2.2 2001:db8::2 192.0.2.1 127.0.0.1; do
  finds "$host" ok reachable 'responds in'
  finds "$host" ok 'path MTU' 'RoCE MTU'
  finds "$host" ok 'RoCE echo' '5 responses to 5 requests'
done
finds 192.0.2.2 ok address 'from 192\.0\.2\.1 by verbena_veth0'
finds 192.0.2.2 ok 'path MTU' 'packets of 1500 bytes .* RoCE MTU of 1024'
finds here ok devices 'verbena_veth0 .*ip link set veth0 mtu 4188'
note "ok a healthy host"

# --- no host, no route, no such name
doctor 1 192.0.2.99 198.51.100.1 no-such-host.invalid
finds 192.0.2.99 problem reachable 'reports no route to it: the host is down'
finds 198.51.100.1 problem address 'no route'
finds no-such-host.invalid problem address 'neither an address nor a known name'
no_problem_with here
note "ok no host, no route, no name"

# --- firewalls: that of the other host drops, rejects or prohibits; the own one blocks outgoing or incoming packets
firewall() { # PREFIX... -- RULE...
  local -a where=()
  while [ "$1" != -- ]; do
    where+=("$1")
    shift
  done
  shift
  "${where[@]}" nft add table inet doctor
  "${where[@]}" nft add chain inet doctor input '{ type filter hook input priority 0; }'
  "${where[@]}" nft add chain inet doctor output '{ type filter hook output priority 0; }'
  "${where[@]}" nft add rule inet doctor "$@"
}
tear_down() { "$@" nft delete table inet doctor; }
if nft add table inet doctor 2>"$logs/nft" && nft delete table inet doctor; then
  firewall "${there[@]}" -- input udp dport 4791 drop
  doctor 1 192.0.2.2
  finds 192.0.2.2 ok reachable 'responds in'
  finds 192.0.2.2 problem 'RoCE echo' 'silent\. Most likely a firewall drops the packets.*ufw allow 4791/udp'
  no_problem_with here
  tear_down "${there[@]}"
  firewall "${there[@]}" -- input udp dport 4791 reject with icmpx type admin-prohibited
  doctor 1 192.0.2.2
  finds 192.0.2.2 problem 'RoCE echo' 'a firewall at 192\.0\.2\.2 refuses UDP port 4791'
  tear_down "${there[@]}"
  firewall "${there[@]}" -- input meta l4proto udp udp dport != 4791 drop
  doctor 0 192.0.2.2
  finds 192.0.2.2 ok reachable 'responds only to RoCE'
  finds 192.0.2.2 hint 'path MTU' 'cannot be measured'
  tear_down "${there[@]}"
  firewall -- output oifname veth0 udp dport 4791 drop
  doctor 1 192.0.2.2
  finds 192.0.2.2 problem 'RoCE echo' "this machine's own firewall"
  tear_down
  firewall -- input udp dport 4791 drop
  doctor 1
  finds here problem firewall 'do not reach UDP port 4791 of verbena_veth0 \(192\.0\.2\.1\)'
  finds here problem firewall 'of verbena_lo \(127\.0\.0\.1\)'
  tear_down
  note "ok firewalls"
else
  note "firewalls are not tried: nft does not work here: $(head -n 1 "$logs/nft")"
fi

# --- no process receives there
kill -KILL "${pids[peer]}"
finish peer 5
doctor 1 192.0.2.2
finds 192.0.2.2 ok reachable 'responds in'
finds 192.0.2.2 problem 'RoCE echo' 'no program receives on its UDP port 4791.*verbena perf --listen'
note "ok a host without RDMA"

# --- the path MTU is smaller than the interface's: packets dropped silently, and with an ICMP error of a router
ip link set veth0 mtu 9000
listen
doctor 1 192.0.2.2
finds 192.0.2.2 problem 'path MTU' 'packets of 1116 bytes arrive \(or somewhat more\).*packets of 9000 bytes are lost'
finds 192.0.2.2 problem 'path MTU' 'ip link set veth0 mtu 1116'
finds 192.0.2.2 ok 'RoCE echo' 'responses to'
note "ok a path that drops large packets"
start third unshare -n sleep infinity
tries=100
while [ "$(readlink "/proc/${pids[third]}/ns/net")" = "$(readlink /proc/self/ns/net)" ] && [ $((tries--)) -gt 0 ]; do
  sleep 0.05
done
beyond=(nsenter -t "${pids[third]}" -n)
"${there[@]}" ip link set veth0 mtu 9000
"${there[@]}" ip link add veth1 type veth peer name veth1 netns "${pids[third]}"
"${there[@]}" ip link set veth1 mtu 2300
"${beyond[@]}" ip link set veth1 mtu 2300
"${there[@]}" ip link set veth1 up
"${beyond[@]}" ip link set veth1 up
"${there[@]}" ip address add 198.51.100.1/24 dev veth1
"${beyond[@]}" ip address add 198.51.100.2/24 dev veth1
"${there[@]}" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' || fail "cannot enable forwarding in the second namespace"
"${beyond[@]}" ip route add 192.0.2.0/24 via 198.51.100.1
ip route add 198.51.100.0/24 via 192.0.2.2
start distant "${beyond[@]}" "$tool" perf --listen
tries=200
until "${beyond[@]}" grep -Eqs '@verbena/.*service/' /proc/net/unix || [ $((tries--)) -le 0 ]; do sleep 0.05; done
doctor 1 198.51.100.2
finds 198.51.100.2 problem 'path MTU' 'packets of 2300 bytes arrive, enough for a RoCE MTU of 2048\. .*ip link set veth0 mtu 2300'
finds 198.51.100.2 ok 'RoCE echo' 'responses to'
ip link set veth0 mtu 2300
doctor 0 198.51.100.2
finds 198.51.100.2 ok 'path MTU' 'packets of 2300 bytes arrive, enough for a RoCE MTU of 2048$'
note "ok a router with a smaller MTU"

# --- this machine: a used port, no free slot, a device without carrier
start holder python3 -c '
import socket, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind(("192.0.2.1", 4791))
print("bound", flush=True)
time.sleep(600)'
await_line "$logs/holder" bound 10 || fail "cannot bind the port"
doctor 1
finds here problem 'UDP port 4791' "on 192\.0\.2\.1 .*held by process ${pids[holder]} \(python"
kill -KILL "${pids[holder]}"
finish holder 5
remove_second_host
(ulimit -f 1000; doctor 0) # creating shared memory would then end it by SIGXFSZ
finds here hint 'shared memory' 'ulimit -f.*over UDP'
VERBENA_DEVICES=none doctor 1
finds here problem devices 'no interface .* lo not used: VERBENA_DEVICES is none'
note "ok problems of this machine"
pass
