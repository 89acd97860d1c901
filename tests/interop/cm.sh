#!/bin/bash
# rdma_cm against the Linux kernel's: connections and datagram services, both directions, IPv4 and IPv6, path MTU 1024
# and 4096.
#
#   cm.sh [-k PATTERN] [-w FILE]            Verbena against rxe
#   cm.sh [-k PATTERN] [-w FILE] selftest   rxe against rxe in a second guest: checks this rig
set -euo pipefail
# shellcheck source=tests/interop/lib/cases.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cases.sh"
# shellcheck source=tests/interop/lib/cm.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cm.sh"

# cm_refused CLIENT-COMMAND: nothing listens on that port, and the client is rejected at once, by the kernel or by any
# Verbena process; so one runs, which listens on another port.
cm_refused() {
    local address=${ADDRESS[$server]} command server_job
    [[ $ip = IPv6 ]] && address=${ADDRESS6[$server]}
    PORT=$((PORT + 2)) PROBLEM=
    command=${1//%a/$address}
    start "$server" "$RUN/server.log" "rping -s -a $address -p $((PORT - 1))"
    server_job=$JOB
    cm_listening "$server" $((PORT - 1)) || PROBLEM="server: does not listen"
    start "$client" "$RUN/client.log" "${command//%p/$PORT}"
    if wait $JOB; then PROBLEM="client: ended well"; fi
    grep -q 'RDMA_CM_EVENT_REJECTED, error 8' "$RUN/client.log" || PROBLEM=${PROBLEM:-client: was not rejected}
    kill $server_job
    wait $server_job 2>/dev/null || true
}

# rping checks its data; ucmatose and udaddy do not.
cases() {
    one_case "$@" rping cm_attempt - "$errors" 'rping -s -S 30000 -a %a -p %p' \
        'rping -c -V -C 20 -S 30000 -a %a -p %p'
    one_case "$@" "rping, own QPs" cm_attempt - "$errors" 'rping -s -q -a %a -p %p' 'rping -c -V -q -C 20 -a %a -p %p'
    one_case "$@" "rping, refused" cm_refused 'rping -c -a %a -p %p'
    one_case "$@" ucmatose cm_attempt - "$errors" 'ucmatose -b %a -p %p -c 10 -C 5 -S 5000' \
        'ucmatose -s %a -p %p -c 10 -C 5 -S 5000'
    one_case "$@" udaddy cm_attempt 7174 "$errors" 'udaddy -b %a -c 5 -C 5 -S 1000' 'udaddy -s %a -c 5 -C 5 -S 1000'
}

run_subject "$@"
