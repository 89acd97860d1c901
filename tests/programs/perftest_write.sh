#!/bin/bash
# ib_write_bw and ib_write_lat on loopback, in every mode.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ib_write_bw ib_write_lat
enter_namespace "$@"
bw=(ib_write_bw -d verbena_lo -x 0 -F)
lat=(ib_write_lat -d verbena_lo -x 0 -F)

pair "bw" "${bw[@]}" -n 1000
pair "bw, all sizes" "${bw[@]}" -a -n 20
pair "bw, both ways" "${bw[@]}" -b -n 1000
pair "bw, both ways, 8 MiB" "${bw[@]}" -b -s 8388608 -n 10
pair "bw, 16 queue pairs" "${bw[@]}" -q 16 -n 100
pair "bw, 16 queue pairs, both ways" "${bw[@]}" -q 16 -b -n 100
pair "bw, lists of requests" "${bw[@]}" -l 16 -t 128 -n 1600 -s 64
pair "bw, inline" "${bw[@]}" -I 64 -s 64 -n 5000
pair "bw, old post send" "${bw[@]}" --use_old_post_send -n 1000
pair "bw, shallow queue" "${bw[@]}" -t 1 -s 4096 -n 1000
pair "bw, small MTU" "${bw[@]}" -m 256 -n 200
pair "lat" "${lat[@]}" -n 1000
pair "lat, all sizes" "${lat[@]}" -a -n 10
pair "lat, inline 0" "${lat[@]}" -I 0 -n 500
nothing_left
pass "$pairs_run pairs"
