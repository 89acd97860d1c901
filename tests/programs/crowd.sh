#!/bin/bash
# 64 processes on one address, each connected to six others. Every second two or three are killed and others start, and
# seven are stopped for up to 1.5 s. Survivors keep their connections, new processes join, steering recovers, and nothing
# is left behind. VERBENA_CROWD_SECONDS is the duration (10; `make soak` takes a minute).
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need g++ python3
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "cannot create network namespaces"
members=${VERBENA_CROWD_MEMBERS:-64}
seconds=${VERBENA_CROWD_SECONDS:-10}

g++ -std=c++20 -O1 -Wno-missing-field-initializers "$root/tests/programs/crowd.cc" -lrdmacm -libverbs \
  -o "$work/crowd" 2>"$logs/g++" || skip "crowd.cc does not compile: are the headers of verbs and rdma_cm installed?"
for datapath in ${VERBENA_CROWD_DATAPATHS:-udp shm}; do
  mkdir "$work/$datapath"
  start crowd env VERBENA_DATAPATH="$datapath" python3 -B "$root/tests/programs/crowd.py" "$tool" "$work/crowd" \
    "$work/$datapath" "$members" "$seconds"
  finish crowd $((seconds + 200))
  [ "$status" = 0 ] || fail "$datapath: exit status $status"
  note "ok $datapath: $(tail -n 1 "$logs/crowd")"
  nothing_left
done
pass
