#!/bin/bash
# RC against the Linux kernel's Soft-RoCE: every operation, both directions, IPv4 and IPv6, path MTU 1024 and 4096.
#
#   rc.sh [-k PATTERN] [-w FILE]            Verbena against rxe
#   rc.sh [-k PATTERN] [-w FILE] selftest   rxe against rxe in a second guest: checks this rig
set -euo pipefail
# shellcheck source=tests/interop/lib/cases.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cases.sh"

# Few iterations: an emulated kernel reaches about 100 Mb/s. A long timeout (17: 0.54 s): on a busy
# machine the guest stalls for longer than perftest's 67 ms, and rxe does not always survive
# the retransmissions.
cases() {
    local tool type options=(-F -u 17) limit=$((CASE_LIMIT_S - 5))
    one_case "$@" rc_check rc_check -t $limit
    one_case "$@" "rc_check, events" rc_check -e -s 2 -t $limit
    one_case "$@" ibv_rc_pingpong ibv_rc_pingpong -c -n 100 -s 16384
    for tool in send write read; do
        one_case "$@" ib_${tool}_bw ib_${tool}_bw "${options[@]}" -n 100 -s 65536
        one_case "$@" ib_${tool}_lat ib_${tool}_lat "${options[@]}" -n 200 -s 2
    done
    one_case "$@" "ib_send_bw, both ways" ib_send_bw -b "${options[@]}" -n 100 -s 65536
    one_case "$@" "ib_write_bw, both ways" ib_write_bw -b "${options[@]}" -n 100 -s 65536
    for type in FETCH_AND_ADD CMP_AND_SWAP; do
        one_case "$@" "ib_atomic_bw $type" ib_atomic_bw "${options[@]}" -n 200 -A $type
        one_case "$@" "ib_atomic_lat $type" ib_atomic_lat "${options[@]}" -n 200 -A $type
    done
}

run_subject "$@"
