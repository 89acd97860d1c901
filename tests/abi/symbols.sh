#!/bin/bash
# The built library as an artefact: every symbol of the distribution's libibverbs.so.1 under the same
# version, default where it is default there, of the same type, data of the same size; nothing else
# visible; nothing but libc needed; both names present. Proves first that a missing symbol is noticed.
set -euo pipefail
build=${VERBENA_BUILD:?the build folder}
ours=$build/lib/libibverbs.so.1
genuine=${GENUINE_LIBIBVERBS:-/usr/lib/$(uname -m)-linux-gnu/libibverbs.so.1}

fail() { echo "symbols: $*" >&2; exit 1; }
[ -e "$ours" ] || fail "$ours is not built"
if [ ! -e "$genuine" ]; then
  echo "symbols: no libibverbs.so.1 of the distribution to compare with"
  exit 77
fi
[ "$(readlink -f "$ours")" != "$(readlink -f "$genuine")" ] || fail "both are the same file"

# "TYPE name@version SIZE" of what a library defines; sizes only for data, and the version nodes too.
exports() {
  readelf --dyn-syms -W "$1" |
    awk '$1 ~ /^[0-9]+:$/ && NF >= 8 && $7 != "UND" { print $4, $8, ($4 == "OBJECT" ? $3 : "-") }' |
    sort
}

missing() { comm -23 "$1" "$2"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exports "$genuine" > "$work/genuine"
exports "$ours" > "$work/ours"
count=$(wc -l < "$work/genuine")
[ "$count" -ge 193 ] || fail "only $count symbols found in $genuine"

# The comparison itself: without any one symbol, under another version, as non-default, it must object.
while read -r type name size; do
  grep -vxF "$type $name $size" "$work/ours" > "$work/broken"
  [ -n "$(missing "$work/genuine" "$work/broken")" ] || fail "the check does not notice $name missing"
done < "$work/genuine"
sed 's/ibv_open_device@@IBVERBS_1.1/ibv_open_device@IBVERBS_1.1/' "$work/ours" | sort > "$work/broken"
[ -n "$(missing "$work/genuine" "$work/broken")" ] || fail "the check does not notice a lost default"

lost=$(missing "$work/genuine" "$work/ours")
[ -z "$lost" ] || fail "missing or different:"$'\n'"$lost"

leaked=$(nm -D --defined-only "$ours" | awk '$2 != "A" && $3 !~ /@/ { print $3 }')
[ -z "$leaked" ] || fail "visible without a version:"$'\n'"$leaked"
extra=$(comm -13 "$work/genuine" "$work/ours")
ours_alone='^FUNC verbena_connection_manager@@VERBENA_PRIVATE_1 -$|^OBJECT VERBENA_PRIVATE_1 '
[ "$(grep -cE "$ours_alone" <<< "$extra")" = 2 ] || fail "librdmacm does not find its connection manager"
odd=$(grep -vE "$ours_alone" <<< "$extra" | awk '$1 != "OBJECT" || $2 !~ /^IBVERBS_/' | grep -vE ' _{0,2}(ibv_|verbs_|mult_to_ibv_|mbps_to_ibv_|execute_ioctl|ioctl_final_num_attrs)[a-z0-9_]*@' || true)
[ -z "${odd// /}" ] || fail "visible and not part of verbs:"$'\n'"$odd"

needed=$(readelf -dW "$ours" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort)
others=$(grep -vxE 'libc\.so\.6|ld-linux-x86-64\.so\.2|ld-linux-aarch64\.so\.1' <<< "$needed" || true)
[ -z "$others" ] || fail "needs more than libc: $others"
soname=$(readelf -dW "$ours" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$soname" = libibverbs.so.1 ] || fail "SONAME is '$soname'"
[ "$(readlink -f "$build/lib/libibverbs.so")" = "$(readlink -f "$ours")" ] ||
  fail "libibverbs.so does not lead to libibverbs.so.1 (NCCL opens that name first)"

echo "symbols: all $count of the distribution's, nothing leaked"
