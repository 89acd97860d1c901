#!/bin/bash
# Many connections by rdma_cm at once, opened and closed by several threads: each has its own number, and all
# resources are released: queue pairs, keys, descriptors, memory. `make bench` measures the speed.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
enter_namespace "$@"
[ -x "$build/cm_flood" ] || fail "$build/cm_flood is not built"

flood() { # LABEL OPTIONS...
  local label=$1
  shift
  start flood "$tool" run -- "$build/cm_flood" -v "$tool" "$@"
  finish flood 300
  [ "$status" = 0 ] || fail "$label: exit status $status"
  grep -q '^connections per second' "$logs/flood" || fail "$label: did not finish"
  note "ok $label: $(grep 'open at once' "$logs/flood")"
}
flood "IPv4, data checked" -c 1000 -t 8 -o 200 -d
flood "IPv6, own queues" -a ::1 -c 500 -t 8 -o 100 -q -d
nothing_left
pass
