#!/bin/bash
# ibv_rc_pingpong with other kinds of memory: on demand, the whole address space, prefetched, device memory.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong
enter_namespace "$@"
pingpong=(ibv_rc_pingpong -d verbena_lo -g 0 -n 200)

for size in 1 4096 65537; do
  pair "on demand, $size bytes" "${pingpong[@]}" -c -o -s "$size"
  pair "whole address space, $size bytes" "${pingpong[@]}" -c -O -s "$size"
  pair "prefetched, $size bytes" "${pingpong[@]}" -c -o -P -s "$size"
  pair "whole address space, prefetched, $size bytes" "${pingpong[@]}" -c -O -P -s "$size"
  whole=$(((size + 3) / 4 * 4))  # device memory is copied in units of 4 bytes
  pair "device memory, $whole bytes" "${pingpong[@]}" -j -s "$whole"
done
pair "on demand, events" "${pingpong[@]}" -c -e -o
pair "device memory, checked" "${pingpong[@]}" -c -j
nothing_left
pass "$pairs_run pairs"
