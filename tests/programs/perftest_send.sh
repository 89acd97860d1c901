#!/bin/bash
# ib_send_bw and ib_send_lat on loopback, in every mode.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ib_send_bw ib_send_lat
enter_namespace "$@"
bw=(ib_send_bw -d verbena_lo -x 0 -F)
lat=(ib_send_lat -d verbena_lo -x 0 -F)

pair "bw" "${bw[@]}" -n 1000
pair "bw, all sizes" "${bw[@]}" -a -n 20
pair "bw, events" "${bw[@]}" -e -n 1000
pair "bw, both ways" "${bw[@]}" -b -n 1000
pair "bw, 16 queue pairs" "${bw[@]}" -q 16 -n 100
# This perftest waits for an event in each round, even if completions are left (later versions poll first). If its last
# completions are added together, it waits indefinitely on any NIC.
attempts=5 time_limit=15 pair "bw, 16 queue pairs, both ways, events" "${bw[@]}" -q 16 -b -e -n 100
pair "bw, lists of requests" "${bw[@]}" -l 16 -t 128 -n 1600 -s 64
pair "bw, inline" "${bw[@]}" -I 64 -s 64 -n 5000
pair "bw, old post send" "${bw[@]}" --use_old_post_send -n 1000
pair "bw, shallow queues" "${bw[@]}" -t 1 -r 1 -s 4096 -n 1000
pair "bw, small MTU" "${bw[@]}" -m 256 -n 200
pair "lat" "${lat[@]}" -n 1000
pair "lat, all sizes" "${lat[@]}" -a -n 10
pair "lat, events" "${lat[@]}" -e -n 500
pair "lat, inline 0" "${lat[@]}" -I 0 -n 500
nothing_left
pass "$pairs_run pairs"
