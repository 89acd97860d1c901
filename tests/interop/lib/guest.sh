# The guest with the Linux kernel's Soft-RoCE (rdma_rxe): its image, its network, starting and removing it.
# Sourced by cases.sh and by rig.
#
# Network: one bridge in a network namespace of this run's own; 10.77.0.1 and fd00:77::1 are this
# side, .2 and ::2 the guest. Cached: the guest's kernel and root (about 200 MB) in
# ~/.cache/verbena-interop; remove that directory for newer Debian packages.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/verbena-interop
VERBENA_BUILD=${VERBENA_BUILD:-$HERE/../../build}
NS=verbena-interop-$$
BRIDGE=roce0
BOOT_LIMIT_S=120
PATTERN='' CAPTURE='' GUESTS=() QEMU=()

usage() {
    sed -n '2,/^set -/{/^#/{s/^# \{0,1\}//;p}}' "$0"
    cat <<'TEXT'

  -k PATTERN    only the cases whose line ("ib_write_bw  verbena->rxe  IPv6 4096") matches (regex)
  -w FILE       writes all packets to FILE (pcap)
  VERBENA_BUILD=DIR     the build tree with the verbena command (default: build)
  VERBENA_QEMU_CPUS=2   CPUs of the guest

Exit status: 0 all passed, 1 some failed, 77 cannot run here (the reason is printed).
TEXT
    exit 2
}
say() { echo "interop: $*" >&2; }
die() { say "$*"; exit 1; }
skip() {
    echo "interop: skipped: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
}

# begin ARGUMENTS...: reads the options, makes this run's directory and checks what is needed. Leaves the other
# arguments in ARGUMENTS.
begin() {
    local option
    while getopts k:w:h option; do
        case $option in
            k) PATTERN=$OPTARG ;;
            w) CAPTURE=$(realpath -m "$OPTARG") ;;
            *) usage ;;
        esac
    done
    shift $((OPTIND - 1))
    ARGUMENTS=("$@")
    RUN=$(mktemp -d "${TMPDIR:-/tmp}/verbena-interop.XXXXXX")
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    export PATH=$RUN/bin:$HERE:$PATH
    check_needs
}

need_verbena() { [[ -x $VERBENA_BUILD/verbena ]] || die "there is no $VERBENA_BUILD/verbena: build first, or set VERBENA_BUILD"; }

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

    # only the modules that are used; crc32_generic, not crc32_pclmul: faster when emulated
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
    # with the C++ library: the guest has none
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
    # /dev/kvm without vmx or svm exists on some virtual machines, and is very slow;
    # erms=off: the kernel would copy by "rep movsb", which is emulated byte by byte
    if [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accelerator=(-accel kvm -cpu host); fi
    GUESTS+=("$id")
    ip -n "$NS" tuntap add "tap$id" mode tap
    # RoCE needs a network without loss: a deep queue to the guest
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
            die "the guest did not boot"
        fi
        sleep 0.2
    done
    say "$(grep '^guest: ready' "$RUN/console$id" | tr -d '\r')"
}

on_guest() { in_ns env GUEST="10.77.0.$(($1 + 2))" "$HERE/guest" "$2"; }

# The receiver of detector readout as built for this host, and the C++ library, which the guest does not have; it uses
# the guest's own libibverbs.
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
