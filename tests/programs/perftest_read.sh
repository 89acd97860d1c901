#!/bin/bash
# ib_read_bw and ib_read_lat on loopback, in every mode.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ib_read_bw ib_read_lat
enter_namespace "$@"
bw=(ib_read_bw -d verbena_lo -x 0 -F)
lat=(ib_read_lat -d verbena_lo -x 0 -F)

pair "bw" "${bw[@]}" -n 1000
pair "bw, all sizes" "${bw[@]}" -a -n 20
pair "bw, events" "${bw[@]}" -e -n 1000
pair "bw, both ways" "${bw[@]}" -b -n 1000
pair "bw, 16 queue pairs" "${bw[@]}" -q 16 -n 100
pair "bw, 16 queue pairs, both ways, events" "${bw[@]}" -q 16 -b -e -n 100
pair "bw, one outstanding read" "${bw[@]}" -o 1 -n 500
pair "bw, small MTU" "${bw[@]}" -m 256 -n 200
pair "lat" "${lat[@]}" -n 1000
pair "lat, all sizes" "${lat[@]}" -a -n 10
pair "lat, events" "${lat[@]}" -e -n 500
nothing_left
pass "$pairs_run pairs"
