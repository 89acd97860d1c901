#!/bin/bash
# Runs the simulator over new seeds for VERBENA_SOAK_MINUTES (60). Stops at the first seed range that
# fails and prints it. VERBENA_SOAK_FROM: first seed (default: the time, so that every run has new
# seeds). VERBENA_SOAK_BATCH: seeds per process.
set -euo pipefail
cd "$(dirname "$0")/.."

sim=${VERBENA_BUILD:-build}/verbena_sim
minutes=${VERBENA_SOAK_MINUTES:-60}
from=${VERBENA_SOAK_FROM:-$(date +%s)000}
batch=${VERBENA_SOAK_BATCH:-200}
jobs=${VERBENA_SOAK_JOBS:-$(nproc)}
if [ ! -x "$sim" ]; then
  echo "soak: $sim does not exist (it is built from tests/sim/sim_main.cc)" >&2
  exit 1
fi

logs=$(mktemp -d)
trap 'pids=$(jobs -p); [ -z "$pids" ] || kill $pids 2>/dev/null || true; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM

first=$from
end=$((SECONDS + minutes * 60))
while [ "$SECONDS" -lt "$end" ]; do
  declare -A range=()
  for _ in $(seq "$jobs"); do
    to=$((from + batch - 1))
    "$sim" --seeds "$from-$to" >"$logs/$from" 2>&1 &
    range[$!]=$from
    from=$((to + 1))
  done
  failed=
  for pid in "${!range[@]}"; do
    rc=0
    wait "$pid" || rc=$?
    if [ "$rc" != 0 ]; then
      start=${range[$pid]}
      tail -n 40 "$logs/$start" >&2
      echo "soak: FAILED with status $rc: $sim --seeds $start-$((start + batch - 1))" >&2
      failed=1
    fi
  done
  if [ -n "$failed" ]; then exit 1; fi
  rm -f "$logs"/*
  unset range
  echo "soak: $((from - first)) seeds passed, $(((end - SECONDS) / 60)) minutes left"
done
echo "soak: passed, seeds $first-$((from - 1))"
