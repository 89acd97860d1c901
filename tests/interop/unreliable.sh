#!/bin/bash
# UC and UD against the Linux kernel's Soft-RoCE: both directions, IPv4 and IPv6, path MTU 1024 and 4096.
#
#   unreliable.sh [-k PATTERN] [-w FILE]            Verbena against rxe
#   unreliable.sh [-k PATTERN] [-w FILE] selftest   rxe against rxe in a second guest: checks this rig
set -euo pipefail
# shellcheck source=tests/interop/lib/cases.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cases.sh"

# Packets are not acknowledged, so the queues are small: an emulated kernel must keep up.
cases() {
    one_case "$@" ibv_uc_pingpong ibv_uc_pingpong -c -n 100 -s 16384
    one_case "$@" ibv_ud_pingpong ibv_ud_pingpong -c -n 100 -s 1000
    one_case "$@" "ib_send_bw UC" ib_send_bw -c UC -F -t 4 -n 100 -s 8192
    one_case "$@" "ib_write_bw UC" ib_write_bw -c UC -F -t 4 -n 100 -s 8192
    one_case "$@" "ib_write_lat UC" ib_write_lat -c UC -F -n 200 -s 2
    one_case "$@" "ib_send_lat UC" ib_send_lat -c UC -F -n 200 -s 2
    one_case "$@" "ib_send_bw UD" ib_send_bw -c UD -F -t 4 -n 100 -s 1024
    one_case "$@" "ib_send_lat UD" ib_send_lat -c UD -F -n 200 -s 2
}

run_subject "$@"
