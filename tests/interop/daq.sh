#!/bin/bash
# Detector readout: an emulated board here, `verbena recv` on the kernel's Soft-RoCE in the guest, path MTU 1024 and
# 4096.
#
#   daq.sh [-k PATTERN] [-w FILE]
set -euo pipefail
# shellcheck source=tests/interop/lib/cases.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cases.sh"

# readout NAME BOARD-OPTIONS RECEIVER-OPTIONS: one case. The receiver is the same file that runs on Verbena. The side
# that is connected to starts first.
readout() {
    local began=$SECONDS board receiver
    selected "$1" "board->rxe" IPv4 "$mtu" || return 0
    PROBLEM=
    : >"$RUN/board.log"
    if [[ $2 = *--connect* ]]; then
        start_receiver "$3"
        await_on rxe "grep -q ':4322 ' /proc/net/udp" || PROBLEM="receiver: does not wait"
        start_board "$2"
    else
        start_board "$2"
        await_on verbena "grep -q listens $RUN/board.log" || PROBLEM="board: does not listen"
        start_receiver "$3"
    fi
    wait "$receiver" || PROBLEM=${PROBLEM:-receiver: exit status $?}
    kill "$board" 2>/dev/null || true # a master exits by itself
    wait "$board" || PROBLEM=${PROBLEM:-board: exit status $?}
    grep -q '^rxe0: ' "$RUN/receiver.log" || PROBLEM=${PROBLEM:-the receiver does not run on rxe0}
    conclude "$began" receiver board
}
start_board() {
    # shellcheck disable=SC2086
    ip netns exec "$NS" timeout -k 5 $CASE_LIMIT_S "$VERBENA_BUILD/verbena" fpga --listen "${ADDRESS[verbena]}" --mtu "$mtu" $1 \
        >"$RUN/board.log" 2>&1 </dev/null &
    board=$!
}
start_receiver() {
    on_guest 0 "exec timeout -k 5 $CASE_LIMIT_S verbena-daq recv --ip ${ADDRESS[rxe]} --mtu $mtu $1" \
        >"$RUN/receiver.log" 2>&1 &
    receiver=$!
}

# The receiver checks every byte.
readouts() { # MTU
    local mtu=$1 ask="--board ${ADDRESS[verbena]}" slow='--timeout-us 500000' # the guest may stall
    readout "recv, WRITE" "$slow" "$ask --streams 2 --msg-size 5120 --messages 300"
    readout "recv, SEND" "$slow" "$ask --streams 2 --op send --msg-size 10000 --messages 300 --poll event"
    readout "recv, few receives" "$slow" "$ask --op send --msg-size 4096 --messages 200 --num-wrs 4 --consumer-us 2000"
    readout "recv, 2 % loss" "--timeout-us 100000 --loss 0.02" "$ask --msg-size 5120 --messages 300 --silence 20"
    readout "recv, asked" "$slow --connect ${ADDRESS[rxe]} --messages 200" "--msg-size 5120"
}

begin "$@"
((${#ARGUMENTS[@]} == 0)) || usage
need_verbena
boot 1
with_each_mtu readouts
