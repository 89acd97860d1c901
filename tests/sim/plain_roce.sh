#!/usr/bin/env bash
# Without core/ext the sources are a plain RoCE NIC: deletes the folder from a copy of the sources, builds the
# simulator from it and runs seeds. Each file of core is compiled by itself here; the normal build compiles all
# of core as one.
#   plain_roce.sh SOURCE_FOLDER
set -euo pipefail
source=$1
seeds=${VERBENA_PLAIN_SEEDS:-1-300}
compiler=${CXX:-g++}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$source/src" "$folder/src"
rm -r "$folder/src/core/ext"
cd "$folder"
for layer in base wire cm sim; do
  find "src/$layer" -name '*.cc' | sort | sed 's/.*/#include "&"/' >"$layer.cc"
done
find src/core -name '*.cc' | cat - <(printf '%s.cc\n' base wire cm sim) |
  xargs -P "$(nproc)" -I{} sh -c '"$0" -std=c++20 -O0 -w -I. -Isrc -c "$1" -o "$(echo "$1" | tr / _).o"' "$compiler" {}
"$compiler" -std=c++20 -w -Isrc "$source/tests/sim/sim_main.cc" ./*.o -l:libdeflate.a -o plain_sim
./plain_sim --seeds "$seeds"
