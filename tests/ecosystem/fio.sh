#!/bin/bash
# fio's rdma engine: memory writes, reads and messages between two processes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need fio
enter_namespace "$@"
patience=60

transfer() { # VERB
  take_port
  start server "$tool" run -- fio --name=server --ioengine=rdma --port="$port" --rw=read --bs=256k --iodepth=16 \
    --size=64m
  await_rdma_listener "$port" server || fail "$1: the server does not listen"
  start client "$tool" run -- fio --name=client --ioengine=rdma --hostname=127.0.0.1 --port="$port" --verb="$1" \
    --rw=write --bs=256k --iodepth=16 --iodepth_batch_complete_min=1 --size=64m
  finish client "$patience"
  [ "$status" = 0 ] || fail "fio $1: the client's exit status is $status"
  grep -Eq 'err= *0' "$logs/client" || fail "fio $1: the client reports an error"
  grep -Eq 'io=64\.0MiB' "$logs/client" || fail "fio $1: not all of it was moved"
  finish server "$patience"
  [ "$status" = 0 ] || fail "fio $1: the server's exit status is $status"
  note "ok fio $1"
}
for verb in write read send; do transfer "$verb"; done
row fio fio "engine rdma: write, read, send of 64 MiB"
nothing_left
pass
