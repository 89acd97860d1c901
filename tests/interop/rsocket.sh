#!/bin/bash
# rsockets against those of librdmacm, over the Linux kernel's Soft-RoCE: both directions, IPv4 and IPv6, path MTU 1024 and
# 4096.
#
#   rsocket.sh [-k PATTERN] [-w FILE]            Verbena against rxe
#   rsocket.sh [-k PATTERN] [-w FILE] selftest   rxe against rxe in a second guest: checks this rig
set -euo pipefail
# shellcheck source=tests/interop/lib/cases.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cases.sh"
# shellcheck source=tests/interop/lib/cm.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cm.sh"
PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so # from librdmacm1, here and in the guest

# cm_streams PROGRAM OPTIONS...: rstream or riostream, with the same options on both sides.
cm_streams() {
    local program=$1
    shift
    cm_attempt - "$errors" "$program -b %a -p %p $*" "$program -s %a -p %p $*"
}

# cm_copy SIZE: copies a file by rcopy, whose server does not exit. Checksums on both sides show that it arrived.
cm_copy() {
    local from to server_job folder=$RUN/rcopy
    PORT=$((PORT + 1)) PROBLEM=
    from="cd $folder && sha256sum <from" to="cd $folder && sha256sum <to"
    shell_on "$server" "mkdir -p $folder && rm -f $folder/to"
    shell_on "$client" "mkdir -p $folder && head -c $1 /dev/urandom >$folder/from"
    : >"$RUN/client.log"
    start "$server" "$RUN/server.log" "rcopy -p $PORT"
    server_job=$JOB
    cm_listening "$server" $PORT || PROBLEM="server: does not listen"
    start "$client" "$RUN/client.log" "rcopy $folder/from ${ADDRESS[$server]}:$folder/to -p $PORT"
    wait $JOB || PROBLEM=${PROBLEM:-client: exit status $?}
    kill $server_job 2>/dev/null || PROBLEM=${PROBLEM:-server: ended}
    wait $server_job 2>/dev/null || true
    [[ $(shell_on "$client" "$from") = "$(shell_on "$server" "$to")" ]] || PROBLEM=${PROBLEM:-the files differ}
    shell_on "$server" "rm -r $folder"
    shell_on "$client" "rm -rf $folder"
}

cases() {
    # riostream writes directly into the peer's buffers (riomap, riowrite). Not by poll (-T a): with librdmacm, poll may
    # report the end before the last data, and the programs stop.
    one_case "$@" rstream cm_streams rstream -T v -I 3 -C 20 -S 10000
    one_case "$@" "rstream, blocking, 1 MB" cm_streams rstream -T v -T b -I 1 -C 3 -S 1000000
    one_case "$@" "rstream, small buffers" cm_streams rstream -T v -B 4096 -i 0 -k 1 -I 3 -C 20 -S 10001
    one_case "$@" riostream cm_streams riostream -T v -I 3 -C 20 -S 10000
    one_case "$@" "riostream, blocking, 1 MB" cm_streams riostream -T v -T b -I 1 -C 3 -S 1000000
    one_case "$@" "riostream, small buffers" cm_streams riostream -T v -B 4096 -i 0 -I 3 -C 20 -S 10001
    if [[ $3 = IPv4 ]]; then one_case "$@" rcopy cm_copy 3000001; fi # it does not parse IPv6 addresses
    # A TCP program preloaded to use rsockets; nothing listens on that TCP port. librdmacm cannot run the server of iperf3,
    # not against librdmacm either.
    [[ $1 != verbena ]] || one_case "$@" "iperf3, librspreload" cm_attempt - "$errors" \
        "env LD_PRELOAD=$PRELOAD iperf3 -s -1 -p %p" "env LD_PRELOAD=$PRELOAD iperf3 -c %a -p %p -n 4M"
}

run_subject "$@"
