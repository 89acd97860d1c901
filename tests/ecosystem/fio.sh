#!/bin/bash
# fio's rdma engine: memory writes, reads and messages between two processes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2086,SC2046  # options are words
need fio
enter_namespace "$@"
patience=60

# pair VERB SERVER-OPTIONS CLIENT-OPTIONS: leaves both running. A memory write or read passes the server's program by;
# what it gets by send it can verify.
pair() {
  take_port
  start server "$tool" run -- fio --name=server --ioengine=rdma --port="$port" --rw=read --bs=256k --iodepth=16 \
    --size=64m $2
  await_rdma_listener "$port" server || fail "$1: the server does not listen"
  start client "$tool" run -- fio --name=client --ioengine=rdma --hostname=127.0.0.1 --port="$port" --verb="$1" \
    --rw=write --bs=256k --iodepth=16 --iodepth_batch_complete_min=1 --size=64m --verify_state_save=0 $3
}
transfer() { # VERB SERVER-OPTIONS CLIENT-OPTIONS
  pair "$@"
  finish client "$patience"
  [ "$status" = 0 ] || fail "fio $1: the client's exit status is $status"
  grep -Eq 'err= *0' "$logs/client" || fail "fio $1: the client reports an error"
  grep -Eq 'io=64\.0MiB' "$logs/client" || fail "fio $1: not all of it was moved"
  finish server "$patience"
  [ "$status" = 0 ] || fail "fio $1: the server's exit status is $status"
  note "ok fio $*"
}
for verb in write read; do transfer "$verb" '' ''; done
# fio asks for no retry where the receiver has posted nothing (RNR), and waits for nobody: so there are as many receives
# as messages, and these come one by one.
transfer send --iodepth=256 --iodepth=1
transfer send '--iodepth=256 --verify=crc32c' '--iodepth=1 --verify=crc32c --do_verify=0'
if grep -q 'verify' "$logs/server"; then fail "fio: what came is not what was sent"; fi
# That it really looks: what has no checksums is noticed.
pair send '--iodepth=256 --verify=crc32c' --iodepth=1
finish server "$patience"
[ "$status" = 1 ] || fail "fio: exit status $status though nothing can be verified"
grep -q 'verify: bad magic header' "$logs/server" || fail "fio does not verify"
kill -KILL $(family "${pids[client]}") 2>/dev/null || true  # which waits for a server that is gone
finish client 5
note "ok fio notices what is wrong"
row fio fio "engine rdma: write, read, send of 64 MiB; send with \`verify=crc32c\`"
nothing_left
pass
