#!/usr/bin/env bash
# Connections per second: 10,000 opened and closed by 32 threads against a server process on this host, 1,000
# held open at once. cm_flood itself fails if anything of them is left. The median of RUNS.
#   RUNS=3 bench/cm_flood.sh
set -euo pipefail
build=${VERBENA_BUILD:-build}
runs=${RUNS:-3}
goal=5000
if [[ -z ${VERBENA_BENCH_INSIDE:-} ]] && unshare -rn true 2>/dev/null; then
  VERBENA_BENCH_INSIDE=1 exec unshare -rn bash "$0" "$@"
fi
[[ -n ${VERBENA_BENCH_INSIDE:-} ]] && ip link set lo up
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

median() { sort -n | awk '{v[NR]=$1} END {print NR%2 ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }
flood() { # NAME OPTIONS...
  local name=$1
  shift
  if ! timeout 300 "$build/verbena" run -- "$build/cm_flood" -v "$build/verbena" "$@" >"$work/out" 2>&1; then
    cat "$work/out" >&2
    return 1
  fi
  awk '/^connections per second/ {print $NF}' "$work/out" >>"$work/$name"
}
for ((i = 0; i < runs; i++)); do
  flood plain -c 10000 -t 32 -o 1000
  flood data -c 10000 -t 32 -o 1000 -d
  flood own -c 10000 -t 32 -o 1000 -q
done
echo "10,000 connections, 32 threads, 1,000 open at once, both ends on this host, $runs runs, medians; nothing was left"
row() { printf '%-60s %8.0f connections/s  %s\n' "$1" "$(median <"$work/$2")" "${3:-}"; }
row 'shared completion queues' plain "(goal: at least $goal)"
row 'and a WRITE and a READ each, checked' data
row 'completion queues and channels of its own each' own
