#!/usr/bin/env bash
# What is left of ib_write_bw's rate when packets get lost at random on their way, both ends Verbena, both
# losing what they receive. Runs are interleaved and medians compared, since machines are shared and noisy.
#   RUNS=5 SECONDS_EACH=2 bench/loss.sh
set -euo pipefail
build=${VERBENA_BUILD:-build}
runs=${RUNS:-5}
seconds_each=${SECONDS_EACH:-2}
port=24300
server=
work=$(mktemp -d)
cleanup() {
  [[ -n $server ]] && kill "$server" 2>/dev/null || :
  rm -rf "$work"
}
trap cleanup EXIT

# A network namespace of our own where that is permitted: nobody else's traffic, nobody else's port.
if [[ -z ${VERBENA_BENCH_INSIDE:-} ]] && unshare -rn true 2>/dev/null; then
  trap - EXIT
  rm -rf "$work"
  VERBENA_BENCH_INSIDE=1 exec unshare -rn bash "$0" "$@"
fi
[[ -n ${VERBENA_BENCH_INSIDE:-} ]] && ip link set lo up
export VERBENA_DATAPATH=udp  # memory that two processes share loses nothing

median() { sort -n | awk '{v[NR]=$1} END {print NR%2 ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }

# goodput PROGRAM LOSS SEED: Gb/s of 1 MiB messages.
goodput() {
  local arguments=("$1" -d verbena_lo -x 0 -F -s 1048576 -D "$seconds_each" --report_gbits) faults=()
  [[ $2 == 0 ]] || faults=(--faults "loss=$2,seed=$3")
  port=$((port + 1))
  timeout 60 "$build/verbena" run "${faults[@]}" -- "${arguments[@]}" -p $port >"$work/server" 2>&1 & server=$!
  for _ in {1..50}; do ss -ltn "sport = :$port" | grep -q LISTEN && break; sleep 0.05; done
  if ! timeout 60 "$build/verbena" run "${faults[@]}" -- "${arguments[@]}" -p $port 127.0.0.1 >"$work/client" 2>&1; then
    cat "$work/server" "$work/client" >&2
    return 1
  fi
  wait "$server" || :
  server=
  awk '/^ *[0-9]+ +[0-9]+ /{v=$4} END {print v}' "$work/client"
}

for ((i = 1; i <= runs; i++)); do
  for loss in 0 0.001 0.01; do
    for program in ib_write_bw ib_read_bw; do goodput $program $loss $i >>"$work/$program.$loss"; done
  done
done

# row PROGRAM LOSS GOAL
row() {
  awk -v program="$1" -v loss="$2" -v goal="$3" -v a="$(median <"$work/$1.$2")" -v b="$(median <"$work/$1.0")" '
    BEGIN {
      verdict = goal == "" ? "" : sprintf("goal: at least %.1f, %s", goal, a / b >= goal ? "reached" : "MISSED")
      printf "%-12s %5.1f %% lost %8.2f Gb/s  %5.2f of the lossless rate  %s\n", program, loss * 100, a, a / b, verdict
    }'
}
echo "1 MiB messages over UDP loopback, path MTU 4096, $runs interleaved runs of $seconds_each s, medians"
row ib_write_bw 0 ''
row ib_write_bw 0.001 0.9
row ib_write_bw 0.01 0.5
row ib_read_bw 0 ''
row ib_read_bw 0.001 ''
row ib_read_bw 0.01 ''
