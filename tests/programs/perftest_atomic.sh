#!/bin/bash
# ib_atomic_bw and ib_atomic_lat on loopback, in every mode.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ib_atomic_bw ib_atomic_lat
enter_namespace "$@"
bw=(ib_atomic_bw -d verbena_lo -x 0 -F)
lat=(ib_atomic_lat -d verbena_lo -x 0 -F)

for kind in FETCH_AND_ADD CMP_AND_SWAP; do
  pair "bw, $kind" "${bw[@]}" -A "$kind" -n 1000
  pair "bw, $kind, events" "${bw[@]}" -A "$kind" -e -n 1000
  pair "bw, $kind, both ways" "${bw[@]}" -A "$kind" -b -n 1000
  pair "bw, $kind, 16 queue pairs" "${bw[@]}" -A "$kind" -q 16 -n 200
  pair "lat, $kind" "${lat[@]}" -A "$kind" -n 1000
  pair "lat, $kind, events" "${lat[@]}" -A "$kind" -e -n 500
done
pair "bw, 16 queue pairs, both ways, events" "${bw[@]}" -q 16 -b -e -n 100
pair "bw, one outstanding atomic" "${bw[@]}" -o 1 -n 500
nothing_left
pass "$pairs_run pairs"
