# Sides and cases: runs a program on both sides and checks its results. Sourced by each subject's script, which
# defines cases() and calls run_subject.
# shellcheck source=tests/interop/lib/guest.sh
source "$(dirname "${BASH_SOURCE[0]}")/guest.sh"
CASE_LIMIT_S=90

# --------------------------------------------------------------------------------------- sides

# A side is "verbena" (here), "rxe" (guest 0) or "rxe2" (guest 1, in the selftest).
declare -A DEVICE=([verbena]=verbena_$BRIDGE [rxe]=rxe0 [rxe2]=rxe0)
declare -A ADDRESS=([verbena]=10.77.0.1 [rxe]=10.77.0.2 [rxe2]=10.77.0.3)
declare -A ADDRESS6=([verbena]=fd00:77::1 [rxe]=fd00:77::2 [rxe2]=fd00:77::3)
declare -A GID # by "side IPv4" and "side IPv6"

# start SIDE LOG COMMAND: in the background; sets JOB. Commands are plain words.
start() {
    local side=$1 log=$2 command=$3
    if [[ $side = verbena ]]; then
        # Not through a function: the job is the program itself, so that a kill ends it.
        # shellcheck disable=SC2086
        ip netns exec "$NS" timeout -k 5 $CASE_LIMIT_S "$VERBENA_BUILD/verbena" run -- $command >"$log" 2>&1 </dev/null &
    else
        on_guest "$([[ $side = rxe ]] && echo 0 || echo 1)" "exec timeout -k 5 $CASE_LIMIT_S $command" >"$log" 2>&1 &
    fi
    JOB=$!
}

find_gids() {
    local side
    for side in "$@"; do
        start "$side" "$RUN/gids" "rc_check -l"
        wait $JOB || { cat "$RUN/gids"; die "cannot list the GIDs of $side"; }
        GID[$side IPv4]=$(awk -v d="${DEVICE[$side]}" -v a="${ADDRESS[$side]}" '$1 == d && $3 == a { print $2 }' "$RUN/gids")
        GID[$side IPv6]=$(awk -v d="${DEVICE[$side]}" -v a="fd00:77::${ADDRESS[$side]##*.}" '$1 == d && $3 == a { print $2 }' "$RUN/gids")
        [[ -n ${GID[$side IPv4]} && -n ${GID[$side IPv6]} ]] || { cat "$RUN/gids"; die "no GID for an address of $side"; }
    done
}

# Runs a shell command on a side, without RDMA.
shell_on() { # SIDE COMMAND
    case $1 in
        verbena) in_ns bash -c "$2" ;;
        rxe) on_guest 0 "$2" ;;
        rxe2) on_guest 1 "$2" ;;
    esac
}

# Waits until a command succeeds on a side.
await_on() { shell_on "$1" "for i in {1..300}; do $2 && exit 0; sleep 0.05; done; exit 1"; } # SIDE COMMAND

# Waits until a program listens on a TCP port of a side, without connecting to it.
listening() {
    local socket
    printf -v socket ':%04X 0*:0000 0A' "$2" # local port, no peer, LISTEN
    await_on "$1" "grep -q '$socket' /proc/net/tcp /proc/net/tcp6"
}

# --------------------------------------------------------------------------------------- cases

PASSED=0 FAILED=0 SKIPPED=0 PORT=18600

# Whether the case is selected. Sets LINE, which describes the case: NAME DIRECTION IP MTU.
selected() {
    LINE=$(printf '%-27s %-13s %-4s %-4s' "$@")
    [[ -z $PATTERN || $LINE =~ $PATTERN ]]
}

# conclude BEGAN LOG...: counts and reports a case that began at second BEGAN; PROBLEM describes the failure. The logs
# of a failed case follow.
conclude() {
    local began=$1 log
    shift
    if [[ -z $PROBLEM ]]; then
        PASSED=$((PASSED + 1))
        echo "$LINE ok ($((SECONDS - began)) s)"
        return
    fi
    FAILED=$((FAILED + 1))
    echo "$LINE FAILED: $PROBLEM"
    for log in "$@"; do sed "s/^/    $log | /" "$RUN/$log.log"; done
}

# one_case SERVER CLIENT IP MTU NAME COMMAND OPTIONS...: COMMAND is a program, or a function that sets PROBLEM
one_case() {
    local server=$1 client=$2 ip=$3 mtu=$4 began=$SECONDS
    selected "$5" "$client->$server" "$ip" "$mtu" || return 0
    shift 5
    case $(type -t "$1") in
        function) "$@" ;;
        *) attempt "$@" ;;
    esac
    # ibv_rc_pingpong destroys its queue pair without a message to the other side. rxe completes a receive
    # before it sends the ACK, so the other side's last send may never be acknowledged.
    if [[ $1 = ibv_rc_pingpong && $PROBLEM = server:* ]]; then
        echo "$LINE again: $PROBLEM"
        attempt "$@"
    fi
    conclude "$began" client server
}

runs() { kill -0 "$1" 2>/dev/null; } # only for children: their ids are not reused before "wait"

# attempt COMMAND OPTIONS...: runs it on both sides of one_case; sets PROBLEM to the failure.
attempt() {
    local gid_option=-g mtu_option="-m $mtu"
    [[ $1 = ib_* ]] && gid_option=-x
    [[ $1 = ibv_ud_pingpong ]] && mtu_option= # it has no such option
    PORT=$((PORT + 1)) PROBLEM=
    : >"$RUN/client.log"

    both listening $PORT \
        "$* -d ${DEVICE[$server]} $gid_option ${GID[$server $ip]} $mtu_option -p $PORT" \
        "$* -d ${DEVICE[$client]} $gid_option ${GID[$client $ip]} $mtu_option -p $PORT ${ADDRESS[$server]}"
    if grep -q 'invalid data' "$RUN"/{server,client}.log; then PROBLEM="data differed"; fi # the only error report of ibv_rc_pingpong -c
}

# both LISTENING PORT SERVER-COMMAND CLIENT-COMMAND: runs the two sides of one_case to their ends.
both() {
    local server_job waiter grace
    start "$server" "$RUN/server.log" "$3"
    server_job=$JOB
    "$1" "$server" "$2" 2>/dev/null &
    waiter=$!
    while runs $waiter && runs $server_job; do sleep 0.05; done
    if kill $waiter 2>/dev/null; then
        PROBLEM="the server ended before the client began"
        return
    fi
    start "$client" "$RUN/client.log" "$4"
    wait $JOB || PROBLEM="client: exit status $?"
    # the server exits with the client, or never
    grace=$((SECONDS + (${#PROBLEM} ? 2 : 15)))
    while runs $server_job && ((SECONDS < grace)); do sleep 0.05; done
    if kill $server_job 2>/dev/null; then PROBLEM=${PROBLEM:-server: still running 15 s after the client}; fi
    wait $server_job 2>/dev/null || PROBLEM=${PROBLEM:-server: exit status $?}
}

# ------------------------------------------------------------------------------------- running

# with_each_mtu COMMAND...: calls COMMAND... MTU for each path MTU, with the network set to it.
with_each_mtu() {
    local mtu
    printf '%-27s %-13s %-4s %-4s %s\n' test direction IP MTU result
    for mtu in 1024 4096; do
        set_mtu $((mtu == 1024 ? 1500 : 4500))
        "$@" $mtu
    done
    echo
    echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    ((FAILED == 0))
}

# Every case of the subject in both directions, over IPv4 and IPv6.
both_directions() { # SIDE SIDE MTU
    local ip server client
    find_gids "$1" "$2"
    for ip in IPv4 IPv6; do
        for server in "$2" "$1"; do
            client=$([[ $server = "$1" ]] && echo "$2" || echo "$1")
            cases "$server" "$client" $ip "$3"
        done
    done
}

# run_subject ARGUMENTS...: calls cases SERVER CLIENT IP MTU for each combination. "selftest" takes a second guest in
# Verbena's place.
run_subject() {
    begin "$@"
    case ${ARGUMENTS[0]:-} in
        '') need_verbena; boot 1; with_each_mtu both_directions verbena rxe ;;
        selftest) boot 2; with_each_mtu both_directions rxe2 rxe ;;
        *) usage ;;
    esac
}
