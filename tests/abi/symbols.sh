#!/bin/bash
# The built library exports every symbol of the distribution's libibverbs.so.1 with the same version, default
# flag and type, and data with the same size. It exports nothing else and needs only libc. Both file names
# exist. First verifies that the check detects a missing symbol.
# shellcheck source-path=SCRIPTDIR source=symbols_lib.sh
. "$(dirname "$0")/symbols_lib.sh"
library libibverbs
all_of "$work/genuine" 193
sed 's/ibv_open_device@@IBVERBS_1.1/ibv_open_device@IBVERBS_1.1/' "$work/ours" | sort > "$work/broken"
[ -n "$(missing "$work/genuine" "$work/broken")" ] || fail "the check does not detect a lost default"

leaked=$(nm -D --defined-only "$ours" | awk '$2 != "A" && $3 !~ /@/ { print $3 }')
[ -z "$leaked" ] || fail "visible without a version:"$'\n'"$leaked"
extra=$(comm -13 "$work/genuine" "$work/ours")
private_symbols='^FUNC verbena_connection_manager@@VERBENA_PRIVATE_1 -$|^OBJECT VERBENA_PRIVATE_1 '
[ "$(grep -cE "$private_symbols" <<< "$extra")" = 2 ] || fail "librdmacm does not find its connection manager"
odd=$(grep -vE "$private_symbols" <<< "$extra" | awk '$1 != "OBJECT" || $2 !~ /^IBVERBS_/' | grep -vE ' _{0,2}(ibv_|verbs_|mult_to_ibv_|mbps_to_ibv_|execute_ioctl|ioctl_final_num_attrs)[a-z0-9_]*@' || true)
[ -z "${odd// /}" ] || fail "visible and not part of verbs:"$'\n'"$odd"

needs_only libc.so.6
has_names libibverbs

echo "symbols: all $count of the distribution's, nothing leaked"
