#!/bin/bash
# Runs every libFuzzer target of build-fuzz/ for VERBENA_FUZZ_SECONDS (60), starting from the
# checked-in corpus. New inputs stay in build-fuzz/corpus/, crashes in build-fuzz/crashes/.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${VERBENA_FUZZ_SECONDS:-60}
launcher=()
if tests/support/own_namespace.sh --probe 2>/dev/null; then launcher=(tests/support/own_namespace.sh); fi
if setarch -R true 2>/dev/null; then launcher+=(setarch -R); fi
shopt -s nullglob
failed=
for target in build-fuzz/fuzz/*_fuzz; do
  name=$(basename "$target")
  mkdir -p "build-fuzz/corpus/$name" build-fuzz/crashes
  corpus=("build-fuzz/corpus/$name")
  if [ -d "tests/fuzz/corpus/$name" ]; then corpus+=("tests/fuzz/corpus/$name"); fi
  echo "== $name, $seconds seconds"
  "${launcher[@]}" "$target" -max_total_time="$seconds" -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build-fuzz/crashes/$name-" "${corpus[@]}" || failed="$failed $name"
done
if [ -n "$failed" ]; then
  echo "fuzz: FAILED:$failed; inputs in build-fuzz/crashes/" >&2
  exit 1
fi
