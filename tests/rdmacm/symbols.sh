#!/bin/bash
# The built library as an artefact: every symbol of the distribution's librdmacm.so.1 under the same
# version, and those of its later releases; nothing else visible; nothing but libc and libibverbs needed;
# both names present. Proves first that a missing symbol is noticed.
set -euo pipefail
build=${VERBENA_BUILD:?the build folder}
ours=$build/lib/librdmacm.so.1
genuine=${GENUINE_LIBRDMACM:-/usr/lib/$(uname -m)-linux-gnu/librdmacm.so.1}

fail() { echo "symbols: $*" >&2; exit 1; }
[ -e "$ours" ] || fail "$ours is not built"
if [ ! -e "$genuine" ]; then
  echo "symbols: no librdmacm.so.1 of the distribution to compare with"
  exit 77
fi
[ "$(readlink -f "$ours")" != "$(readlink -f "$genuine")" ] || fail "both are the same file"

# "TYPE name@version" of what a library defines, the version nodes too.
exports() {
  readelf --dyn-syms -W "$1" |
    awk '$1 ~ /^[0-9]+:$/ && NF >= 8 && $7 != "UND" { print $4, $8 }' | sort
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exports "$genuine" > "$work/genuine"
for name in rdma_query_addrinfo rdma_resolve_addrinfo rdma_write_cm_event; do
  echo "FUNC $name@@RDMACM_1.4"
done | sort -m - "$work/genuine" | sort -u > "$work/wanted"
exports "$ours" > "$work/ours"
count=$(wc -l < "$work/wanted")
[ "$count" -ge 75 ] || fail "only $count symbols found in $genuine"

while read -r type name; do
  grep -vxF "$type $name" "$work/ours" > "$work/broken"
  [ -n "$(comm -23 "$work/wanted" "$work/broken")" ] || fail "the check does not notice $name missing"
done < "$work/wanted"

lost=$(comm -23 "$work/wanted" "$work/ours")
[ -z "$lost" ] || fail "missing or different:"$'\n'"$lost"
odd=$(comm -13 "$work/wanted" "$work/ours" | grep -vE '^OBJECT RDMACM_1\.[0-9]$|^FUNC repoll_[a-z]+@@RDMACM_1\.5$' || true)
[ -z "$odd" ] || fail "visible and not part of rdma_cm:"$'\n'"$odd"

needed=$(readelf -dW "$ours" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort)
others=$(grep -vxE 'libibverbs\.so\.1|libc\.so\.6|ld-linux-x86-64\.so\.2|ld-linux-aarch64\.so\.1' <<< "$needed" || true)
[ -z "$others" ] || fail "needs more than libibverbs and libc: $others"
soname=$(readelf -dW "$ours" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$soname" = librdmacm.so.1 ] || fail "SONAME is '$soname'"
readelf -dW "$ours" | grep -q NODELETE || fail "can be unloaded, while libibverbs has a pointer into it"
[ "$(readlink -f "$build/lib/librdmacm.so")" = "$(readlink -f "$ours")" ] ||
  fail "librdmacm.so does not lead to librdmacm.so.1"

echo "symbols: all $count of the distribution's and of later releases, nothing leaked"
