#!/bin/bash
# Two network namespaces with a veth pair, as two hosts with a wire that loses 0 %, 1 % or 10 % of the packets at
# each end. IPv4 and IPv6; RoCE MTU 1024 and 4096.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ip nsenter ibv_rc_pingpong ib_write_bw ib_send_bw ib_read_bw ib_atomic_bw
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "cannot create network namespaces"

connect_second_host
client_in=("${there[@]}")
host=192.0.2.1

perftest() {
  local name=$1
  shift
  pair "${faults_label}ib_${name} $*" "ib_$name" -d verbena_veth0 -x 0 -F "$@"
}

# The sides of ibv_rc_pingpong do not disconnect: a side ends when it has received everything. If its last ACK is
# lost, no process responds to the retries of the other side. So with packet loss one side may end with "retry
# counter exceeded", as on any RDMA network, but never both.
pingpong() {
  local label="${faults_label}ibv_rc_pingpong $*" side ended=
  rm -f "$logs"/pair.*
  start_pair pair ibv_rc_pingpong -d verbena_veth0 -c "$@"
  for side in client server; do
    finish "pair.$side" "$time_limit"
    if [ "$status" = 0 ]; then
      ended="$ended $side"
    else
      grep -q 'retry counter exceeded' "$logs/pair.$side" ||
        fail "$label: the $side's exit status is $status"
    fi
  done
  [ -n "$ended" ] || fail "$label: neither side succeeded"
  pairs_run=$((pairs_run + 1))
  note "ok $label (succeeded:$ended)"
}

faults_label=
pair "ibv_rc_pingpong" ibv_rc_pingpong -d verbena_veth0 -g 0 -c
pair "ibv_rc_pingpong, events" ibv_rc_pingpong -d verbena_veth0 -g 0 -c -e
pair "ibv_rc_pingpong, IPv6" ibv_rc_pingpong -d verbena_veth0 -g 1 -c
pair "ib_write_bw, IPv6" ib_write_bw -d verbena_veth0 -x 1 -F -n 500
for size in 1 1024 65536 1048576; do perftest write_bw -s "$size" -n 100; done
perftest send_bw -n 500
perftest send_bw -b -s 1048576 -n 50
perftest read_bw -n 500
perftest read_bw -b -s 1048576 -n 50
perftest atomic_bw -n 500
set_wire mtu 9000
pair "ibv_rc_pingpong, MTU 4096" ibv_rc_pingpong -d verbena_veth0 -g 0 -c -m 4096 -s 100001 -n 50
perftest write_bw -s 1048576 -n 50
perftest send_bw -n 500

rc_check=
if [ -e "$root/tests/interop/rc_check/rc_check.cc" ] && command -v g++ >/dev/null; then
  rc_check=$work/rc_check
  g++ -std=c++20 -O1 "$root/tests/interop/rc_check/rc_check.cc" -libverbs -o "$rc_check" 2>"$logs/g++" ||
    fail "rc_check.cc does not compile"
  pair "rc_check" "$rc_check" -d verbena_veth0 -g 0
  pair "rc_check, IPv6, events" "$rc_check" -d verbena_veth0 -g 1 -e
else
  note "left out: rc_check (its source or g++ is missing)"
fi

for percent in 1 10; do
  seed=$((percent * 1000 + 7))
  loss=$(printf '0.%02d' "$percent")
  run_options=(--faults "loss=$loss,seed=$seed")
  faults_label="$percent % lost: "
  n=$((percent == 1 ? 200 : 30))
  pingpong -g 0 -n "$n"
  pingpong -g 1 -n "$n"
  perftest write_bw -s 4096 -n "$n"
  perftest write_bw -s 1048576 -n 5
  perftest send_bw -s 65536 -n 25
  perftest read_bw -s 65536 -n 25
  perftest read_bw -s 1048576 -n 5
  perftest atomic_bw -n "$n"
  # At 10 % loss the timeouts of its many large messages would take minutes.
  if [ -n "$rc_check" ] && [ "$percent" = 1 ]; then
    pair "${faults_label}rc_check" "$rc_check" -d verbena_veth0 -g 0 -s "$seed" --lossy
  fi
done
run_options=(--faults "loss=0.02,duplicate=0.05,reorder=0.05,delay=0.02,send=1,seed=11")
faults_label="lost, duplicated, reordered: "
pingpong -g 0 -n 100
perftest write_bw -s 65536 -n 50
perftest read_bw -s 65536 -n 50
perftest atomic_bw -n 100
nothing_left
pass "$pairs_run pairs"
