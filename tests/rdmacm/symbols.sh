#!/bin/bash
# The built library exports every symbol of the distribution's librdmacm.so.1 with the same version, and
# those of later releases. It exports nothing else and needs only libc and libibverbs. Both file names
# exist. First verifies that the check detects a missing symbol.
# shellcheck source-path=SCRIPTDIR source=../abi/symbols_lib.sh
. "$(dirname "$0")/../abi/symbols_lib.sh"
library librdmacm
{
  for name in rdma_query_addrinfo rdma_resolve_addrinfo rdma_write_cm_event; do
    echo "FUNC $name@@RDMACM_1.4 -"
  done
  for name in repoll_create repoll_ctl repoll_wait; do
    echo "FUNC $name@@RDMACM_1.5 -"
  done
} | sort -m - "$work/genuine" | sort -u > "$work/wanted"
all_of "$work/wanted" 78
odd=$(comm -13 "$work/wanted" "$work/ours" | grep -vE '^OBJECT RDMACM_1\.[0-9] ' || true)
[ -z "$odd" ] || fail "visible and not part of rdma_cm:"$'\n'"$odd"

needs_only 'libibverbs\.so\.1'
has_names librdmacm
readelf -dW "$ours" | grep -q NODELETE || fail "can be unloaded, while libibverbs has a pointer into it"

echo "symbols: all $count of the distribution's and of later releases, nothing leaked"
