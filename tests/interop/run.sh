#!/bin/bash
# Verbena against the Linux kernel's Soft-RoCE (rdma_rxe) and rdma_cm: every RC operation, datagrams,
# connections and rsockets, IPv4 and IPv6, path MTU 1024 and 4096, in both directions. The kernel runs in a QEMU guest with Debian's stock kernel,
# so nothing is loaded into this machine's.
#
#   run.sh [-k PATTERN] [-w FILE]            the matrix, Verbena against rxe
#   run.sh [-k PATTERN] [-w FILE] selftest   the same, rxe against rxe in a second guest: checks this rig
#   run.sh speed                             only how fast both are inside the guest (at the end of the whole matrix too)
#   run.sh [-w FILE] shell [COMMAND...]      a shell (or a command) in the network with the guest; there
#                                            "guest COMMAND" runs a command in the guest
#   run.sh build                             only builds what is cached
#
#   -k PATTERN    only the cases whose line ("ib_write_bw  verbena->rxe  IPv6 4096") matches (regex)
#   -w FILE       writes all packets to FILE (pcap)
#   VERBENA_BUILD=DIR     the build tree with the verbena command (default: build)
#   VERBENA_QEMU_CPUS=2   CPUs of the guest
#
# Exit status: 0 all passed, 1 some failed, 77 cannot run here (the reason is printed).
# Network: one bridge in a network namespace of this run's own; 10.77.0.1 and fd00:77::1 are this
# side, .2 and ::2 the guest. Cached: the guest's kernel and root (about 200 MB) in
# ~/.cache/verbena-interop; remove that directory for newer Debian packages.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/verbena-interop
VERBENA_BUILD=${VERBENA_BUILD:-$HERE/../../build}
NS=verbena-interop-$$
BRIDGE=roce0
BOOT_LIMIT_S=120
CASE_LIMIT_S=90
SPEED_LIMIT_S=300
PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so # of librdmacm1, here and in the guest

usage() { sed -n '2,/^set -/{/^#/{s/^# \{0,1\}//;p}}' "${BASH_SOURCE[0]}"; exit 2; }
say() { echo "interop: $*" >&2; }
die() { say "$*"; exit 1; }
skip() {
    echo "interop: skipped: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
}

# ------------------------------------------------------------------------------ what is needed

check_needs() {
    [[ $EUID = 0 ]] || skip "needs root (network namespace, tap)"
    [[ -c /dev/net/tun ]] || skip "there is no /dev/net/tun"
    [[ $(uname -m) = x86_64 ]] || skip "the guest is x86-64"
    local command missing=()
    for command in qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap cpio:cpio depmod:kmod \
        tcpdump:tcpdump ip:iproute2 ib_write_bw:perftest ibv_rc_pingpong:ibverbs-utils rping:rdmacm-utils \
        iperf3:iperf3; do
        command -v "${command%:*}" >/dev/null || missing+=("${command#*:}")
    done
    ((${#missing[@]})) || return 0
    command -v apt-get >/dev/null || skip "${missing[*]} not installed, and there is no apt-get"
    say "installing ${missing[*]}"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends "${missing[@]}"; } >"$RUN/apt.log" 2>&1 ||
        skip "cannot install ${missing[*]}: $(tail -1 "$RUN/apt.log")"
}

# ------------------------------------------------------------------ the guest's kernel and root

# Makes $1/kernel and $1/root.cpio: Debian's kernel and a minimal Debian with the RDMA tools, of this
# machine's release, from this machine's package sources. Nothing of it is installed here.
build_guest() {
    local out=$1 root=$1/root kernel=$1/kernel-package release version module sources
    local packages=rdma-core,ibverbs-utils,ibverbs-providers,rdmacm-utils,perftest
    packages+=,iproute2,kmod,iperf3,python3-pyverbs,socat
    mapfile -t sources < <(ls /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null)
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    # the kernel's package is downloaded and unpacked, not installed: that would build an initrd
    # shellcheck disable=SC2016
    nice mmdebstrap --quiet --mode=root --variant=minbase --include="$packages" \
        --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='set -e
            export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG
            cd "$1/boot"
            apt-get -qq download "$(apt-cache depends linux-image-amd64 | sed -n "s/.*Depends: //p" | head -1)"' \
        "$release" "$root" "${sources[@]}"
    dpkg-deb -x "$root"/boot/linux-image-*.deb "$kernel"
    (cd "$root" && rm -r boot/* var/lib/apt/lists usr/lib/x86_64-linux-gnu/{perl,gconv} usr/share/perl)
    cp "$kernel"/boot/vmlinuz-* "$out/kernel"

    # only the modules that are used; crc32_generic and not crc32_pclmul: quicker when emulated
    version=$(basename "$kernel"/lib/modules/*)
    depmod -b "$kernel" "$version"
    for module in virtio_pci virtio_net virtio_rng crc32_generic rdma_rxe ib_uverbs rdma_ucm; do
        modprobe -d "$kernel" -S "$version" --show-depends "$module"
    done | sed -n "s|^insmod $kernel/\([^ ]*\).*|\1|p" | sort -u | (cd "$kernel" && xargs cp --parents -t "$root/usr")
    cp "$kernel/lib/modules/$version"/modules.{builtin,order} "$root/usr/lib/modules/$version/"
    depmod -b "$root" "$version"
    (cd "$root" && find . -xdev | cpio -o -H newc -R 0:0 --quiet) >"$out/root.cpio"
    rm -rf --one-file-system "$root" "$kernel"
}

# Sets GUEST_IMAGE, a directory of the cache; its name changes with the recipe above.
find_guest_image() {
    mkdir -p "$CACHE"
    exec 8>"$CACHE/lock"
    flock 8 # another run may be building it
    GUEST_IMAGE=$CACHE/$(declare -f build_guest | sha256sum | head -c 12)
    if [[ ! -d $GUEST_IMAGE ]]; then
        say "building the guest's image (a minute)"
        mkdir "$RUN/image"
        (set -e; build_guest "$RUN/image") >"$RUN/image.log" 2>&1 || {
            tail -20 "$RUN/image.log"
            skip "cannot build the guest's image from Debian's packages"
        }
        rm -rf "$CACHE"/????????????
        mv "$RUN/image" "$GUEST_IMAGE"
    fi
    exec 8>&-
}

build_rc_check() {
    mkdir -p "$RUN/bin"
    # the C++ library goes in: the guest has none
    nice "${CXX:-g++}" -std=c++20 -O2 -Wall -Wextra -static-libstdc++ -static-libgcc "$HERE/rc_check/rc_check.cc" \
        -o "$RUN/bin/rc_check" -libverbs || die "cannot build rc_check"
}

# ------------------------------------------------------------------------------------- network

in_ns() { ip netns exec "$NS" "$@"; }

network_up() {
    ip netns add "$NS"
    in_ns sh -c 'echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6' 2>/dev/null || true
    ip -n "$NS" link set lo up
    ip -n "$NS" link add "$BRIDGE" type bridge stp_state 0 forward_delay 0 mcast_snooping 0
    ip -n "$NS" link set "$BRIDGE" up
    ip -n "$NS" addr add 10.77.0.1/24 dev "$BRIDGE"
    ip -n "$NS" addr add fd00:77::1/64 dev "$BRIDGE" nodad
    if [[ -n $CAPTURE ]]; then
        in_ns tcpdump -q -i "$BRIDGE" -U -s 0 -w "$CAPTURE" udp port 4791 2>"$RUN/tcpdump.log" &
    fi
}

# Ethernet MTU of everything: 1500 gives RoCE path MTU 1024, 4500 gives 4096.
set_mtu() {
    local id
    for id in "${GUESTS[@]}"; do ip -n "$NS" link set "tap$id" mtu "$1"; done
    ip -n "$NS" link set "$BRIDGE" mtu "$1"
    for id in "${GUESTS[@]}"; do on_guest "$id" "ip link set eth0 mtu $1" || die "cannot set the guest's MTU"; done
}

# -------------------------------------------------------------------------------------- guests

start_guest() { # start_guest ID: tap<ID>, 10.77.0.<ID+2>, fd00:77::<ID+2>
    local id=$1 accelerator=(-accel 'tcg,thread=multi,tb-size=256' -cpu 'max,la57=off,erms=off')
    # /dev/kvm without vmx or svm is there on some virtual machines, and hopelessly slow;
    # erms=off: the kernel would copy by "rep movsb", which is emulated byte by byte
    if [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accelerator=(-accel kvm -cpu host); fi
    GUESTS+=("$id")
    ip -n "$NS" tuntap add "tap$id" mode tap
    # RoCE wants a network that loses nothing: a deep queue to the guest
    ip -n "$NS" link set "tap$id" txqueuelen 10000 master "$BRIDGE" up
    in_ns nice qemu-system-x86_64 -name "$NS-guest$id" "${accelerator[@]}" -machine q35 \
        -smp "${VERBENA_QEMU_CPUS:-2}" -m 1024 -nodefaults -no-user-config -display none -no-reboot \
        -kernel "$GUEST_IMAGE/kernel" -initrd "$RUN/initrd" -serial "file:$RUN/console$id" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable address4=10.77.0.$((id + 2))/24 address6=fd00:77::$((id + 2))/64" \
        -netdev "tap,id=net,ifname=tap$id,script=no,downscript=no" \
        -device "virtio-net-pci,netdev=net,mac=52:54:00:77:00:0$((id + 2))" -device virtio-rng-pci \
        </dev/null >"$RUN/qemu$id.log" 2>&1 &
    QEMU[id]=$!
}

await_guest() {
    local id=$1 deadline=$((SECONDS + BOOT_LIMIT_S))
    until grep -qs '^guest: ready' "$RUN/console$id"; do
        if ! kill -0 "${QEMU[id]}" 2>/dev/null || ((SECONDS > deadline)); then
            tail -n 30 "$RUN/qemu$id.log" "$RUN/console$id" || true
            die "the guest did not come up"
        fi
        sleep 0.2
    done
    say "$(grep '^guest: ready' "$RUN/console$id" | tr -d '\r')"
}

on_guest() { in_ns env GUEST="10.77.0.$(($1 + 2))" "$HERE/guest" "$2"; }

# The receiver of detector readout as it is built for here, and the C++ library, which the guest has not; its libibverbs
# is the guest's own.
install_receiver() {
    local program=$VERBENA_BUILD/lib/verbena-daq
    [[ -x $program ]] || return 0
    install -s -t "$RUN/extra/usr/bin" "$program"
    mkdir -p "$RUN/extra/usr/lib/x86_64-linux-gnu"
    ldd "$program" | sed -nE 's/.*lib(stdc\+\+|gcc_s)\.so.* => ([^ ]+) .*/\2/p' |
        xargs cp -L -t "$RUN/extra/usr/lib/x86_64-linux-gnu"
}

boot() { # boot NUMBER_OF_GUESTS
    local id
    find_guest_image
    build_rc_check
    # archives one after the other are unpacked over one another: the cached root, then this tree's files
    mkdir -p "$RUN/extra/usr/bin"
    install "$HERE/guest-init" "$RUN/extra/init"
    install "$RUN/bin/rc_check" "$HERE/guest-speed" "$RUN/extra/usr/bin/"
    if [[ -e $VERBENA_BUILD/lib/libibverbs.so.1 ]]; then
        install -s -D -t "$RUN/extra/usr/lib/verbena" "$VERBENA_BUILD"/lib/lib{ibverbs,rdmacm}.so.1
    fi
    install_receiver
    (cd "$RUN/extra" && find . | cpio -o -H newc -R 0:0 --quiet) | cat "$GUEST_IMAGE/root.cpio" - >"$RUN/initrd"
    network_up
    for ((id = 0; id < $1; id++)); do start_guest "$id"; done
    for ((id = 0; id < $1; id++)); do await_guest "$id"; done
}

# Everything in the namespace was started by this run.
cleanup() {
    local status=$? pids try
    trap - EXIT
    trap '' INT TERM HUP
    for try in TERM TERM KILL; do
        pids=$(ip netns pids "$NS" 2>/dev/null | grep -vx $$) || break
        # shellcheck disable=SC2086
        kill -$try $pids 2>/dev/null || true
        sleep 0.5
    done
    ip netns del "$NS" 2>/dev/null || true
    rm -rf --one-file-system "$RUN"
    exit $status
}

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
        # Not a function's: the job is the program itself, and ends when it is killed.
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

# A shell's command on a side, without RDMA.
shell_on() { # SIDE COMMAND
    case $1 in
        verbena) in_ns bash -c "$2" ;;
        rxe) on_guest 0 "$2" ;;
        rxe2) on_guest 1 "$2" ;;
    esac
}

# Waits until a command succeeds on a side.
await_on() { shell_on "$1" "for i in {1..300}; do $2 && exit 0; sleep 0.05; done; exit 1"; } # SIDE COMMAND

# Waits until something listens on a TCP port of a side, without connecting to it.
listening() {
    local socket
    printf -v socket ':%04X 0*:0000 0A' "$2" # local port, no peer, LISTEN
    await_on "$1" "grep -q '$socket' /proc/net/tcp /proc/net/tcp6"
}

# The same for a port of rdma_cm: the kernel lists its ids, Verbena's services are names of Unix sockets.
cm_listening() {
    if [[ $1 = verbena ]]; then
        await_on "$1" "grep -Eq '@verbena/.*/service/[0-9]+/[0-9a-f]{12}$(printf %04x "$2")/' /proc/net/unix"
    else
        await_on "$1" "rdma resource show cm_id 2>/dev/null | grep LISTEN | grep -Eq '[]0-9a-f:.]:$2 '"
    fi
}

# --------------------------------------------------------------------------------------- cases

PASSED=0 FAILED=0 SKIPPED=0 PORT=18600

# one_case SERVER CLIENT IP MTU NAME COMMAND OPTIONS...: COMMAND may be cm_attempt or cm_refused, below.
one_case() {
    local server=$1 client=$2 ip=$3 mtu=$4 name=$5 began=$SECONDS line
    shift 5
    line=$(printf '%-27s %-13s %-4s %-4s' "$name" "$client->$server" "$ip" "$mtu")
    [[ -z $PATTERN || $line =~ $PATTERN ]] || return 0
    case $1 in
        cm_*) "$@" ;;
        *) attempt "$@" ;;
    esac
    # ibv_rc_pingpong destroys its queue pair without telling the other side. rxe completes a receive
    # before it sends the ACK, so the other side's last send may never be acknowledged.
    if [[ $1 = ibv_rc_pingpong && $PROBLEM = server:* ]]; then
        echo "$line again: $PROBLEM"
        attempt "$@"
    fi
    if [[ -z $PROBLEM ]]; then
        PASSED=$((PASSED + 1))
        echo "$line ok ($((SECONDS - began)) s)"
    else
        FAILED=$((FAILED + 1))
        echo "$line FAILED: $PROBLEM"
        sed 's/^/    client | /' "$RUN/client.log"
        sed 's/^/    server | /' "$RUN/server.log"
    fi
}

runs() { kill -0 "$1" 2>/dev/null; } # only for children: their ids are not used again before "wait"

# attempt COMMAND OPTIONS...: runs it on both sides of one_case; sets PROBLEM to what went wrong.
attempt() {
    local gid_option=-g mtu_option="-m $mtu"
    [[ $1 = ib_* ]] && gid_option=-x
    [[ $1 = ibv_ud_pingpong ]] && mtu_option= # it knows no such option
    PORT=$((PORT + 1)) PROBLEM=
    : >"$RUN/client.log"

    both listening $PORT \
        "$* -d ${DEVICE[$server]} $gid_option ${GID[$server $ip]} $mtu_option -p $PORT" \
        "$* -d ${DEVICE[$client]} $gid_option ${GID[$client $ip]} $mtu_option -p $PORT ${ADDRESS[$server]}"
    if grep -q 'invalid data' "$RUN"/{server,client}.log; then PROBLEM="data differed"; fi # all that ibv_rc_pingpong -c says
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
    # the server ends with the client, or never
    grace=$((SECONDS + (${#PROBLEM} ? 2 : 15)))
    while runs $server_job && ((SECONDS < grace)); do sleep 0.05; done
    if kill $server_job 2>/dev/null; then PROBLEM=${PROBLEM:-server: still running 15 s after the client}; fi
    wait $server_job 2>/dev/null || PROBLEM=${PROBLEM:-server: exit status $?}
}

# cm_attempt PORT PATTERN SERVER-COMMAND CLIENT-COMMAND: programs of rdma_cm, whose sides differ. %a becomes the
# server's address, %p the port (PORT: the one port that some programs know). Neither log may have PATTERN.
cm_attempt() {
    local port=$1 address=${ADDRESS[$server]} log
    [[ $ip = IPv6 ]] && address=${ADDRESS6[$server]}
    PORT=$((PORT + 1)) PROBLEM=
    [[ $port = - ]] && port=$PORT
    : >"$RUN/client.log"
    set -- "$port" "$2" "${3//%a/$address}" "${4//%a/$address}"
    both cm_listening "$port" "${3//%p/$port}" "${4//%p/$port}"
    for log in server client; do
        if grep -Eq "$2" "$RUN/$log.log"; then PROBLEM=${PROBLEM:-$log: says "$(grep -Em 1 "$2" "$RUN/$log.log")"}; fi
    done
}

# cm_streams PROGRAM OPTIONS...: rstream or riostream, with the same options on both sides.
cm_streams() {
    local program=$1
    shift
    cm_attempt - "$errors" "$program -b %a -p %p $*" "$program -s %a -p %p $*"
}

# cm_refused CLIENT-COMMAND: nobody listens on that port, and the client is told so at once. By whom: the kernel, or
# any Verbena process; so there is one, which listens on another.
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

# cm_copy SIZE: a file by rcopy, whose server goes on for ever. That it arrived is what the sums say, on both sides.
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

# Detector readout: an emulated board here, `verbena recv` in the guest, the same file that runs on Verbena. Whoever is
# asked is started first.
# readout NAME BOARD-OPTIONS RECEIVER-OPTIONS
readout() {
    local line began=$SECONDS board receiver problem=
    line=$(printf '%-27s %-13s %-4s %-4s' "$1" "board->rxe" IPv4 "$mtu")
    [[ -z $PATTERN || $line =~ $PATTERN ]] || return 0
    : >"$RUN/board.log"
    if [[ $2 = *--connect* ]]; then
        start_receiver "$3"
        await_on rxe "grep -q ':4322 ' /proc/net/udp" || problem="receiver: does not wait"
        start_board "$2"
    else
        start_board "$2"
        await_on verbena "grep -q listens $RUN/board.log" || problem="board: does not listen"
        start_receiver "$3"
    fi
    wait "$receiver" || problem=${problem:-receiver: exit status $?}
    kill "$board" 2>/dev/null || true # a master ends by itself
    wait "$board" || problem=${problem:-board: exit status $?}
    grep -q '^rxe0: ' "$RUN/receiver.log" || problem=${problem:-the receiver does not run on rxe0}
    if [[ -z $problem ]]; then
        PASSED=$((PASSED + 1))
        echo "$line ok ($((SECONDS - began)) s)"
    else
        FAILED=$((FAILED + 1))
        echo "$line FAILED: $problem"
        sed 's/^/    receiver | /' "$RUN/receiver.log"
        sed 's/^/    board | /' "$RUN/board.log"
    fi
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

readouts() { # each byte is checked by the receiver
    local mtu=$1 ask="--board ${ADDRESS[verbena]}" slow='--timeout-us 500000' # the guest may stand still
    readout "recv, WRITE" "$slow" "$ask --streams 2 --msg-size 5120 --messages 300"
    readout "recv, SEND" "$slow" "$ask --streams 2 --op send --msg-size 10000 --messages 300 --poll event"
    readout "recv, few receives" "$slow" "$ask --op send --msg-size 4096 --messages 200 --num-wrs 4 --consumer-us 2000"
    readout "recv, 2 % loss" "--timeout-us 100000 --loss 0.02" "$ask --msg-size 5120 --messages 300 --silence 20"
    readout "recv, asked" "$slow --connect ${ADDRESS[rxe]} --messages 200" "--msg-size 5120"
}

matrix() { # matrix SIDE SIDE
    local mtu ip server client
    printf '%-27s %-13s %-4s %-4s %s\n' test direction IP MTU result
    for mtu in 1024 4096; do
        set_mtu $((mtu == 1024 ? 1500 : 4500))
        find_gids "$@"
        for ip in IPv4 IPv6; do
            for server in "$2" "$1"; do
                client=$([[ $server = "$1" ]] && echo "$2" || echo "$1")
                cases "$server" "$client" $ip $mtu
            done
        done
        [[ $1 != verbena ]] || readouts $mtu
    done
    echo
    echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    ((FAILED == 0))
}

# Few iterations: an emulated kernel moves some 100 Mb/s. A long timeout (17: 0.54 s): on a busy
# machine the guest stands still for longer than perftest's 67 ms, and rxe does not always survive
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
    # Nothing is acknowledged: small queues, so that an emulated kernel can follow.
    one_case "$@" ibv_uc_pingpong ibv_uc_pingpong -c -n 100 -s 16384
    one_case "$@" ibv_ud_pingpong ibv_ud_pingpong -c -n 100 -s 1000
    one_case "$@" "ib_send_bw UC" ib_send_bw -c UC -F -t 4 -n 100 -s 8192
    one_case "$@" "ib_write_bw UC" ib_write_bw -c UC -F -t 4 -n 100 -s 8192
    one_case "$@" "ib_write_lat UC" ib_write_lat -c UC -F -n 200 -s 2
    one_case "$@" "ib_send_lat UC" ib_send_lat -c UC -F -n 200 -s 2
    one_case "$@" "ib_send_bw UD" ib_send_bw -c UD -F -t 4 -n 100 -s 1024
    one_case "$@" "ib_send_lat UD" ib_send_lat -c UD -F -n 200 -s 2
    # By rdma_cm. rping, rstream and riostream check their data.
    local errors='rror|fail|mismatch|verif|rsend|rrecv|rconnect'
    one_case "$@" rping cm_attempt - "$errors" 'rping -s -S 30000 -a %a -p %p' \
        'rping -c -V -C 20 -S 30000 -a %a -p %p'
    one_case "$@" "rping, own QPs" cm_attempt - "$errors" 'rping -s -q -a %a -p %p' 'rping -c -V -q -C 20 -a %a -p %p'
    one_case "$@" "rping, refused" cm_refused 'rping -c -a %a -p %p'
    one_case "$@" ucmatose cm_attempt - "$errors" 'ucmatose -b %a -p %p -c 10 -C 5 -S 5000' \
        'ucmatose -s %a -p %p -c 10 -C 5 -S 5000'
    one_case "$@" udaddy cm_attempt 7174 "$errors" 'udaddy -b %a -c 5 -C 5 -S 1000' 'udaddy -s %a -c 5 -C 5 -S 1000'
    # rsockets against the original's; riostream writes straight into the peer's buffers (riomap, riowrite). Not by poll
    # (-T a): with the original, whoever polls may be told of the end before what was sent last, and the programs stop.
    one_case "$@" rstream cm_streams rstream -T v -I 3 -C 20 -S 10000
    one_case "$@" "rstream, blocking, 1 MB" cm_streams rstream -T v -T b -I 1 -C 3 -S 1000000
    one_case "$@" "rstream, small buffers" cm_streams rstream -T v -B 4096 -i 0 -k 1 -I 3 -C 20 -S 10001
    one_case "$@" riostream cm_streams riostream -T v -I 3 -C 20 -S 10000
    one_case "$@" "riostream, blocking, 1 MB" cm_streams riostream -T v -T b -I 1 -C 3 -S 1000000
    one_case "$@" "riostream, small buffers" cm_streams riostream -T v -B 4096 -i 0 -I 3 -C 20 -S 10001
    if [[ $3 = IPv4 ]]; then one_case "$@" rcopy cm_copy 3000001; fi # it knows no addresses with colons
    # A TCP program that becomes one of rsockets; there is nobody at that TCP port. The original is no server of iperf3's,
    # not for the original either.
    [[ $1 != verbena ]] || one_case "$@" "iperf3, librspreload" cm_attempt - "$errors" \
        "env LD_PRELOAD=$PRELOAD iperf3 -s -1 -p %p" "env LD_PRELOAD=$PRELOAD iperf3 -c %a -p %p -n 4M"
}

# --------------------------------------------------------------------------------------- speed

# Both inside the one guest, so that both have the same kernel and the same emulated processor; not judged, told.
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
                printf "  ib_send_lat 8 B, us: Soft-RoCE %s, Verbena by %s %s: %.1fx as quick\n", median("latency rxe"), path, \
                    median("latency " path), median("latency rxe") / median("latency " path)
            }
        }'
}

# ---------------------------------------------------------------------------------------- main

PATTERN='' CAPTURE='' GUESTS=() QEMU=()
while getopts k:w:h option; do
    case $option in
        k) PATTERN=$OPTARG ;;
        w) CAPTURE=$(realpath -m "$OPTARG") ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))

RUN=$(mktemp -d "${TMPDIR:-/tmp}/verbena-interop.XXXXXX")
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
export PATH=$RUN/bin:$HERE:$PATH

need_verbena() { [[ -x $VERBENA_BUILD/verbena ]] || die "there is no $VERBENA_BUILD/verbena: build first, or set VERBENA_BUILD"; }

check_needs
case ${1:-matrix} in
    matrix) need_verbena; boot 1; matrix verbena rxe; [[ -n $PATTERN ]] || speed ;;
    speed) need_verbena; boot 1; speed ;;
    selftest) boot 2; matrix rxe2 rxe ;;
    shell) shift; boot 1; export VERBENA_BUILD; in_ns "${@:-bash}" ;;
    build) find_guest_image ;;
    *) usage ;;
esac
