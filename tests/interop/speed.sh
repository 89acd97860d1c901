#!/bin/bash
# Soft-RoCE and Verbena, each between two processes of the same guest, so that both have the same kernel and the same
# emulated processor. The numbers are printed, not checked.
#
#   speed.sh [-w FILE]
set -euo pipefail
# shellcheck source=tests/interop/lib/cases.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cases.sh"
SPEED_LIMIT_S=300

speed() {
    set_mtu 4500
    on_guest 0 "timeout -k 5 $SPEED_LIMIT_S guest-speed ${ADDRESS[rxe]} 3" >"$RUN/speed" 2>&1 || {
        cat "$RUN/speed"
        die "the speed in the guest could not be measured"
    }
    echo
    echo "Between two processes in the guest, medians of 3 (aim: 2x):"
    sort -k 1,2 -k 3,3n "$RUN/speed" | awk '
        { number[$1 " " $2] = number[$1 " " $2] " " $3 }
        function median(key, n, all) { n = split(number[key], all, " "); return all[int((n + 1) / 2)] }
        END {
            for (who = split("wire memory", paths, " "); who > 0; who--) {
                path = paths[who]
                printf "  ib_write_bw 64 KiB, Gb/s: Soft-RoCE %s, Verbena by %s %s: %.1fx\n", median("bandwidth rxe"), path, \
                    median("bandwidth " path), median("bandwidth " path) / median("bandwidth rxe")
                printf "  ib_send_lat 8 B, us: Soft-RoCE %s, Verbena by %s %s: %.1fx as fast\n", median("latency rxe"), path, \
                    median("latency " path), median("latency rxe") / median("latency " path)
            }
        }'
}

begin "$@"
((${#ARGUMENTS[@]} == 0)) || usage
need_verbena
boot 1
speed
