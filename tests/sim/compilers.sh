#!/usr/bin/env bash
# The simulator gives the same trace for a seed whichever compiler built it: a failing seed can be replayed on
# any machine. Builds the simulator with the other compiler and compares the traces of both.
#   compilers.sh VERBENA_SIM SOURCE_FOLDER
set -euo pipefail
simulator=$1
source=$2
seeds=${VERBENA_COMPARED_SEEDS:-1-300}
other=clang++
if strings -a "$simulator" | grep -q '^clang version\|(clang'; then other=g++; fi
command -v "$other" >/dev/null || { echo "$other is not installed"; exit 77; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# One translation unit per layer compiles several times faster than one per file.
pids=()
for layer in base wire core cm sim; do
  find "$source/src/$layer" -name '*.cc' | sort | sed 's/.*/#include "&"/' >"$folder/$layer.cc"
  "$other" -std=c++20 -O1 -w -I"$source/src" -c "$folder/$layer.cc" -o "$folder/$layer.o" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
"$other" -std=c++20 -O1 -w -I"$source/src" -I"$source" "$source/tests/sim/sim_main.cc" "$folder"/*.o \
  -l:libdeflate.a -o "$folder/other_sim"

"$simulator" --seeds "$seeds" --verbose >"$folder/default.txt"
"$folder/other_sim" --seeds "$seeds" --verbose >"$folder/other.txt"
grep -q 'trace [0-9a-f]\{16\}' "$folder/default.txt" || { echo "the simulator printed no trace"; exit 1; }
if ! cmp -s "$folder/default.txt" "$folder/other.txt"; then
  echo "seeds whose traces differ between $simulator and the one built by $other:"
  diff "$folder/default.txt" "$folder/other.txt" | head -20
  exit 1
fi
echo "$(grep -c 'trace' "$folder/default.txt") seeds have the same trace"
