#!/bin/bash
# The bottleneck with plain UDP datagrams: all, in order and unchanged; rate, queue, ECN marks, loss, reordering.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
enter_network "$@"
start_bottleneck  # skips this script if it is not permitted
stop_bottleneck
python3 -B "$root/tests/network/router_check.py" "$build/bottleneck" "${pids[second_host]}" || fail "see above"
pass
