#!/bin/bash
# hwloc: lstopo shows our devices beside their interfaces in the machine's topology. It ignores devices that are on no
# bus, so this uses the machine's own interfaces; nothing is sent.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need lstopo-no-graphics ip
export VERBENA_TEST_NETNS=host
enter_namespace "$@"
time_limit=30
interfaces=$("$tool" devices | grep -oE 'verbena_[^ ]+' | sed 's/^verbena_//' | sort -u |
  while read -r name; do [ ! -e "/sys/class/net/$name/device" ] || echo "$name"; done)
[ -n "$interfaces" ] || skip "no interface of this machine is on a bus"
bounded "$tool" run -- lstopo-no-graphics --of console
for name in $interfaces; do
  # Both are children of one PCI device: they are on consecutive lines with the same indentation.
  grep -A 1 "Net \"$name\"" "$logs/out" | grep -q "OpenFabrics \"verbena_$name\"" || fail "lstopo does not show verbena_$name beside $name"
done
bounded lstopo-no-graphics --of console
if grep -q verbena_ "$logs/out"; then fail "the sysfs view is visible outside verbena run"; fi
row "hwloc (lstopo)" hwloc-nox "shows each device at its interface's place in the machine"
pass
