#!/bin/bash
# own_namespace.sh COMMAND...: runs a command in its own network namespace, so that UDP port 4791, the slot
# directory and verbena_lo belong to this command only. Root stays root. Any other user becomes root of a new
# user namespace, which needs no privileges. own_namespace.sh --probe: exit status 0 if this user may create
# such a namespace.
set -euo pipefail

apart=(unshare -rn)
[ "$(id -u)" != 0 ] || ! unshare -n true 2>/dev/null || apart=(unshare -n)
if [ "${1:-}" = --probe ]; then exec "${apart[@]}" ip link set lo up; fi
exec "${apart[@]}" sh -c 'ip link set lo up && exec "$@"' own_namespace "$@"
