#!/bin/bash
# ECN against the Linux kernel's Soft-RoCE, which ignores ECN marks and CNPs. Every other packet of both sides gets a
# mark on the way, Verbena sends CNPs, and every byte arrives. Both directions, IPv4 and IPv6, path MTU 1024 and 4096.
#
#   ecn.sh [-k PATTERN] [-w FILE]
set -euo pipefail
# shellcheck source=tests/interop/lib/cases.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/cases.sh"

# Packets of Verbena are marked only if they are ECT(0). Those of rxe are never ECT, so their marks are forged. The
# first byte after the UDP header is the opcode; 0x81 is a CNP.
mark_packets() {
    in_ns nft -f - <<'RULES' || skip "the kernel or nft cannot set ECN marks"
table inet marks {
    counter verbena { }
    counter rxe { }
    counter cnps { }
    chain sent {
        type filter hook output priority filter;
        udp dport 4791 @th,64,8 0x81 counter name cnps
        udp dport 4791 ip ecn ect0 numgen inc mod 2 0 ip ecn set ce counter name verbena
        udp dport 4791 ip6 ecn ect0 numgen inc mod 2 0 ip6 ecn set ce counter name verbena
    }
    chain received {
        type filter hook input priority filter;
        udp dport 4791 ip ecn not-ect numgen inc mod 2 0 ip ecn set ce counter name rxe
        udp dport 4791 ip6 ecn not-ect numgen inc mod 2 0 ip6 ecn set ce counter name rxe
    }
}
RULES
}

# marked COMMAND OPTIONS...: the case also fails if a side's packets got no mark, or Verbena sent no CNP.
marked() {
    local name
    in_ns nft reset counters >/dev/null
    attempt "$@"
    for name in verbena rxe cnps; do
        [[ $(in_ns nft list counter inet marks $name) = *"packets "[1-9]* ]] ||
            PROBLEM=${PROBLEM:-the network counted no packets of \"$name\"}
    done
}

cases() {
    one_case "$@" "rc_check, marks" marked rc_check -t $((CASE_LIMIT_S - 5))
    one_case "$@" "ib_write_bw, marks" marked ib_write_bw -b -F -u 17 -n 100 -s 65536
    one_case "$@" "ib_read_bw, marks" marked ib_read_bw -b -F -u 17 -n 50 -s 65536
}

begin "$@"
((${#ARGUMENTS[@]} == 0)) || usage
need_verbena
command -v nft >/dev/null || skip "nft (package nftables) is not installed"
boot 1
mark_packets
with_each_mtu both_directions verbena rxe
