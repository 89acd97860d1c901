#!/bin/bash
# Open MPI and MPICH on our devices: 2, 4 and 8 ranks on one host, then on four (network namespaces on a
# bridge, started by the launchers themselves). The program, mpi_check.cc, checks every number; the devices'
# counters show that the traffic went through them.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ip nsenter
enter_namespace "$@"
time_limit=100
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

openmpi=
mpich=
if command -v mpicxx.openmpi >/dev/null && command -v mpirun.openmpi >/dev/null; then openmpi=$work/check.openmpi; fi
if command -v mpicxx.mpich >/dev/null && command -v mpirun.mpich >/dev/null; then mpich=$work/check.mpich; fi
[ -n "$openmpi$mpich" ] || skip "neither Open MPI nor MPICH is installed"
for mpi in ${openmpi:+openmpi} ${mpich:+mpich}; do
  "mpicxx.$mpi" -std=c++20 -O1 -o "$work/check.$mpi" "$root/tests/ecosystem/mpi_check.cc" 2>"$logs/mpicxx" ||
    fail "mpi_check.cc does not compile with $mpi"
done

# Run by rank 0 when all have finished and before any exits: how many processes of its host sent packets.
cat >"$work/count" <<COUNT
#!/bin/bash
echo "processes that sent: \$("$tool" counters --all | awk '\$1 == "packets_sent" && \$2 > 100' | wc -l)"
COUNT
chmod +x "$work/count"
through_us() { # AT-LEAST WHAT: at least that many processes of rank 0's host sent packets
  expect_output '^ok: '
  local sent
  sent=$(awk '/^processes that sent:/ {print $4}' "$logs/out")
  [ "${sent:-0}" -ge "$1" ] || fail "$2: only ${sent:-no} processes sent anything through Verbena"
}

# UCX may use no other transport: ranks on one host would use UCX's own shared memory.
ucx=(UCX_TLS=rc_v,self)
ompi_ucx=(--mca pml ucx --mca osc ucx --mca btl '^vader,tcp,openib,uct,ofi')
# One-sided by libfabric, messages by UCX: Open MPI's btl ofi is for windows. It needs atomics, which verbs;ofi_rxm
# does not have, so it uses verbs;ofi_rxd. That crashes between hosts, over plain UDP too: a defect of libfabric.
ompi_btl=(--mca pml ucx --mca osc rdma --mca btl ofi,self --mca btl_ofi_provider_include verbs)
ompi_ofi=(--mca pml cm --mca osc pt2pt --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' --mca btl '^vader,tcp,openib,uct,ofi')

# ------------------------------------------------------------------------------------ one host

for n in 2 4 8; do
  if [ -n "$openmpi" ]; then
    bounded env "${ucx[@]}" UCX_NET_DEVICES=verbena_lo:1 "$tool" run -- \
      mpirun.openmpi --oversubscribe -n $n "${ompi_ucx[@]}" "$openmpi" "$work/count"
    through_us $n "Open MPI, $n ranks"
    note "ok Open MPI, pml ucx, $n ranks, one host"
  fi
  if [ -n "$mpich" ]; then
    bounded env "${ucx[@]}" UCX_NET_DEVICES=verbena_lo:1 MPIR_CVAR_NOLOCAL=1 "$tool" run -- \
      mpirun.mpich -n $n "$mpich" "$work/count"
    through_us $n "MPICH, $n ranks"
    note "ok MPICH, ch4:ucx, $n ranks, one host"
  fi
done
[ -z "$openmpi" ] || row "Open MPI" openmpi-bin "pml ucx, osc ucx: 2, 4 and 8 ranks, one host"
[ -z "$mpich" ] || row MPICH mpich "ch4:ucx: 2, 4 and 8 ranks, one host"

# ------------------------------------------------------------------------------------ four hosts

if [ "$own_namespace" != yes ]; then
  nothing_left
  pass "without several hosts, for lack of network namespaces"
  exit 0
fi
ip link add bridge0 type bridge
ip link set bridge0 addrgenmode none mtu 4500 up
for i in 1 2 3 4; do
  start "host$i" unshare -n --uts sleep infinity
  tries=100
  while [ "$(readlink "/proc/${pids[host$i]}/ns/net")" = "$(readlink /proc/self/ns/net)" ]; do
    [ $((tries--)) -gt 0 ] || skip "cannot create more network namespaces"
    sleep 0.05
  done
  inside=(nsenter -t "${pids[host$i]}" -n --uts)
  "${inside[@]}" hostname "host$i"
  ip link add "port$i" type veth peer name eth0 netns "${pids[host$i]}"
  ip link set "port$i" addrgenmode none mtu 4500 master bridge0 up
  "${inside[@]}" ip link set lo up
  "${inside[@]}" ip link set eth0 addrgenmode none mtu 4500 up
  "${inside[@]}" ip address add "192.0.2.$i/24" dev eth0
done

# The launchers call this instead of ssh to start a program on another host.
{
  echo '#!/bin/bash'
  echo 'while [[ $1 == -* ]]; do shift; done'
  echo 'case $1 in'
  for i in 1 2 3 4; do echo "  192.0.2.$i|host$i) pid=${pids[host$i]};;"; done
  echo '  *) echo "no host $1" >&2; exit 1;;'
  echo 'esac'
  echo 'shift'
  echo 'exec nsenter -t "$pid" -n --uts -- /bin/bash -c "$*"'
} >"$work/rsh"
chmod +x "$work/rsh"
hosts=192.0.2.1,192.0.2.2,192.0.2.3,192.0.2.4
on_first=(nsenter -t "${pids[host1]}" -n --uts)

open_mpi() { # RANKS SLOTS-OF-HOSTS WHERE WHAT MCA-OPTIONS...
  local n=$1 slots=$2 where=$3 what=$4
  shift 4
  bounded "${on_first[@]}" env "${ucx[@]}" UCX_NET_DEVICES=verbena_eth0:1 "$tool" run --device eth0 -- mpirun.openmpi \
    --oversubscribe -n "$n" --map-by node --mca plm_rsh_agent "$work/rsh" --mca oob_tcp_if_include eth0 -H "$slots" \
    --prefix /usr -x LD_LIBRARY_PATH -x LD_PRELOAD -x VERBENA_DEVICES -x UCX_TLS -x UCX_NET_DEVICES \
    "$@" "$openmpi" "$work/count"
  through_us "$(on_one_host "$n" "$where")" "Open MPI, $what, $n ranks, $where"
  note "ok Open MPI, $what, $n ranks, $where"
}
on_one_host() { # RANKS WHERE: the least number of ranks on rank 0's host
  if [ "$2" = "one host" ]; then echo "$1"; else echo $((($1 + 3) / 4)); fi
}
for n in 2 4 8; do
  if [ -n "$openmpi" ]; then
    open_mpi $n 192.0.2.1:8 "one host" "mtl ofi (verbs;ofi_rxm)" "${ompi_ofi[@]}"
    open_mpi $n 192.0.2.1:8 "one host" "btl ofi (verbs)" "${ompi_btl[@]}"
    open_mpi $n "${hosts//,/:2,}:2" "four hosts" "pml ucx" "${ompi_ucx[@]}"
    open_mpi $n "${hosts//,/:2,}:2" "four hosts" "mtl ofi (verbs;ofi_rxm)" "${ompi_ofi[@]}"
  fi
  if [ -n "$mpich" ]; then
    bounded "${on_first[@]}" env "${ucx[@]}" UCX_NET_DEVICES=verbena_eth0:1 MPIR_CVAR_NOLOCAL=1 "$tool" run -- \
      mpirun.mpich -launcher rsh -launcher-exec "$work/rsh" -iface eth0 -hosts "$hosts" -n $n "$mpich" "$work/count"
    through_us "$(on_one_host $n "four hosts")" "MPICH over four hosts, $n ranks"
    note "ok MPICH, ch4:ucx, $n ranks, four hosts"
  fi
done
if [ -n "$openmpi" ]; then
  row "Open MPI" openmpi-bin "pml ucx, osc ucx: 2, 4 and 8 ranks, four hosts"
  row "Open MPI" openmpi-bin "mtl ofi over verbs;ofi_rxm: 2, 4 and 8 ranks, one host and four"
  row "Open MPI" openmpi-bin "btl ofi over verbs, osc rdma: 2, 4 and 8 ranks, one host (4)"
fi
[ -z "$mpich" ] || row MPICH mpich "ch4:ucx: 2, 4 and 8 ranks, four hosts"
for i in 1 2 3 4; do
  kill -KILL "${pids[host$i]}"
  finish "host$i" 5
done
nothing_left

if [ -n "$openmpi" ]; then
  PATH=$build:$PATH bounded "$root/examples/mpi_two_hosts.sh" 4
  expect_output '^rank 1 of 4 is on host2'
  expect_output '^4 ranks, 0 wrong words'
  note "ok examples/mpi_two_hosts.sh"
fi
pass
