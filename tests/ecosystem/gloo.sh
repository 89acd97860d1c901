#!/bin/bash
# gloo's ibverbs transport, used by a small program that links libgloo: three ranks, results checked.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need g++
[ -e /usr/include/gloo/transport/ibverbs/device.h ] || skip "libgloo-dev is not installed"
enter_namespace "$@"
g++ -std=c++17 -O1 -w -o "$work/gloo_check" "$root/tests/ecosystem/gloo_check.cc" -lgloo -libverbs -lpthread 2>"$logs/g++" ||
  fail "gloo_check.cc does not compile"
mkdir "$work/store"
for rank in 0 1 2; do
  start "rank$rank" "$tool" run -- "$work/gloo_check" verbena_lo 0 "$work/store" "$rank" 3
done
for rank in 0 1 2; do
  finish "rank$rank" 60
  [ "$status" = 0 ] || fail "rank $rank: exit status $status"
  grep -q '^ok$' "$logs/rank$rank" || fail "rank $rank did not print ok"
done
row gloo libgloo0 "transport ibverbs: allreduce, allgather, broadcast of three ranks"
nothing_left
pass
