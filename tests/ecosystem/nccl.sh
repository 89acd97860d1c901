#!/bin/bash
# The real NCCL over its InfiniBand transport: processes that share a GPU and believe to be on different hosts.
# Once over shared memory, once over UDP. With PyTorch's distributed package too where PyTorch is installed.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
cuda=${CUDA_HOME:-/usr/local/cuda}
need g++ nvidia-smi
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || skip "there is no GPU"
[ -e /usr/include/nccl.h ] || skip "NCCL's header is not installed"
[ -e "$cuda/include/cuda_runtime.h" ] || skip "CUDA is not installed in $cuda"
enter_namespace "$@"

g++ -std=c++17 -O1 -o "$work/nccl_check" "$root/tests/ecosystem/nccl_check.cc" -I"$cuda/include" -L"$cuda/lib64" \
  -lnccl -lcudart 2>"$logs/g++" || fail "nccl_check.cc does not compile"

# NCCL rejects ranks on one GPU as duplicates unless they are on different hosts; NCCL_HOSTID sets the host.
export NCCL_SOCKET_IFNAME=lo NCCL_IB_HCA=verbena_lo NCCL_DEBUG=INFO
# together NAME RANKS COMMAND...: RANKS processes, each with its number in RANK; all must succeed over our device.
together() {
  local name=$1 ranks=$2 rank
  shift 2
  for ((rank = 0; rank < ranks; ++rank)); do
    NCCL_HOSTID=host$rank RANK=$rank WORLD_SIZE=$ranks start "$name$rank" "$tool" run -- "$@"
  done
  for ((rank = 0; rank < ranks; ++rank)); do
    finish "$name$rank" 120
    [ "$status" = 0 ] || fail "$name, rank $rank: exit status $status"
    grep -q '^ok$' "$logs/$name$rank" || fail "$name, rank $rank did not print ok"
    grep -q 'NET/IB : Using \[0\]verbena_lo:1/RoCE' "$logs/$name$rank" || fail "$name: NCCL does not use verbena_lo"
    grep -q 'via NET/IB' "$logs/$name$rank" || fail "$name: NCCL's channels are not on NET/IB"
  done
}

for datapath in shm udp; do
  for ranks in 2 4; do
    mkdir -p "$work/$datapath$ranks"
    # shellcheck disable=SC2016  # RANK is each process's own
    VERBENA_DATAPATH=$datapath together "$datapath$ranks-" $ranks \
      sh -c 'exec "$0" "$1" "$RANK" "$WORLD_SIZE"' "$work/nccl_check" "$work/$datapath$ranks"
  done
done
row NCCL libnccl2 "2 and 4 ranks on NET/IB, through shared memory and over UDP: all-reduce, all-gather, broadcast, send and receive"

python=${VERBENA_TORCH_PYTHON:-python3}
if "$python" -c 'import torch' 2>/dev/null; then
  export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
  together torch 2 "$python" "$root/tests/ecosystem/torch_check.py"
  note "ok PyTorch $("$python" -c 'import torch; print(torch.__version__)'): a model trained by two ranks, gradients over NET/IB"
fi
nothing_left
pass
