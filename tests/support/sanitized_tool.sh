#!/bin/bash
# The tool of a sanitized build ($VERBENA_BUILD) for programs that are not sanitized: every program that it
# starts loads the runtime of the sanitizers first.
set -euo pipefail
runtime=$(ldd "${VERBENA_BUILD:?the build folder}/lib/libibverbs.so.1" | awk '$1 ~ /^lib[at]san/ {print $3}')
[ -n "$runtime" ] || { echo "sanitized_tool.sh: $VERBENA_BUILD is not sanitized" >&2; exit 1; }
# Only fully sanitized tests check for leaks, because most programs do not free all memory before exit().
export ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$runtime${LD_PRELOAD:+:$LD_PRELOAD}
# g++ 12's sanitizers do not expect the address randomization of newer kernels (mmap_rnd_bits > 28).
launcher=()
if LD_PRELOAD='' setarch -R true 2>/dev/null; then launcher=(setarch -R); fi
exec "${launcher[@]}" "$VERBENA_BUILD/verbena" "$@"
