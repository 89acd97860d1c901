#!/bin/bash
# Runs an MPI program on two "hosts" of one machine (two_hosts.sh), over Verbena. Needs no privileges, but Debian's
# openmpi-bin, libopenmpi-dev and gcc. On two real machines use the same mpirun without the agent: ssh is the default.
#   examples/mpi_two_hosts.sh [RANKS]        (PATH has verbena; in a build tree: PATH=$PWD/build:$PATH)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${ON_SECOND:-}" ]; then exec "$here/two_hosts.sh" "'$here/mpi_two_hosts.sh' ${1:-4}"; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpicc.openmpi -O2 -o "$work/mpi" "$here/mpi.c"

# mpirun starts its helper on the second host as ssh would: AGENT [OPTIONS] HOST COMMAND.
cat >"$work/agent" <<AGENT
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
shift
exec $ON_SECOND bash -c "\$*"
AGENT
chmod +x "$work/agent"

# Restrict UCX to Verbena's device: both hosts are one machine, so UCX would otherwise detect that and share memory.
export UCX_TLS=rc_v,self UCX_NET_DEVICES=verbena_veth0:1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1  # a user namespace shows uid 0
# -x passes the variables of `verbena run` to the ranks of the other host.
verbena run -- mpirun.openmpi -n "${1:-4}" --host 192.0.2.1:4,192.0.2.2:4 --map-by node --oversubscribe \
  --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include veth0 --prefix /usr \
  --mca pml ucx --mca btl '^vader,tcp,openib,uct,ofi' \
  -x LD_LIBRARY_PATH -x LD_PRELOAD -x UCX_TLS -x UCX_NET_DEVICES "$work/mpi"
