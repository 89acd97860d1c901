#!/bin/bash
# fio's rdma engine: WRITEs, READs and SENDs between two processes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2086,SC2046  # options are words
need fio
enter_namespace "$@"
time_limit=60

# pair VERB SERVER-OPTIONS CLIENT-OPTIONS: leaves both running. The server can verify data only when it arrives by SEND.
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
  finish client "$time_limit"
  [ "$status" = 0 ] || fail "fio $1: the client's exit status is $status"
  grep -Eq 'err= *0' "$logs/client" || fail "fio $1: the client reports an error"
  grep -Eq 'io=64\.0MiB' "$logs/client" || fail "fio $1: not all data was transferred"
  finish server "$time_limit"
  [ "$status" = 0 ] || fail "fio $1: the server's exit status is $status"
  note "ok fio $*"
}
for verb in write read; do transfer "$verb" '' ''; done
# fio sets an RNR retry count of 0 and does not wait for receives: so there are as many receives as messages, and the
# messages are sent one at a time.
transfer send --iodepth=256 --iodepth=1
transfer send '--iodepth=256 --verify=crc32c' '--iodepth=1 --verify=crc32c --do_verify=0'
if grep -q 'verify' "$logs/server"; then fail "fio: the received data differs from the data sent"; fi
# That it really verifies: data without checksums is rejected.
pair send '--iodepth=256 --verify=crc32c' --iodepth=1
finish server "$time_limit"
[ "$status" = 1 ] || fail "fio: exit status $status, expected 1 for data without checksums"
grep -q 'verify: bad magic header' "$logs/server" || fail "fio does not verify"
kill -KILL $(family "${pids[client]}") 2>/dev/null || true  # it waits for a server that has exited
finish client 5
note "ok fio detects data without checksums"
row fio fio "engine rdma: write, read, send of 64 MiB; send with \`verify=crc32c\`"
nothing_left
pass
