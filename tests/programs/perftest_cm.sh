#!/bin/bash
# perftest with -R: connected by rdma_cm instead of TCP, RC and UD.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw ib_atomic_lat
enter_namespace "$@"
await_server=await_rdma_listener

for test in send write read atomic; do
  pair "$test bw" ib_${test}_bw -R -F -n 200
  pair "$test lat" ib_${test}_lat -R -F -n 200
  pair "$test bw, 4 queue pairs" ib_${test}_bw -R -F -q 4 -n 100
done
for test in send write read; do pair "$test bw, both ways" ib_${test}_bw -R -F -b -n 200; done
pair "send bw, events" ib_send_bw -R -F -e -n 200
pair "write bw, both ways, 16 queue pairs" ib_write_bw -R -F -b -q 16 -n 50
pair "write bw, 1 MiB" ib_write_bw -R -F -s 1048576 -n 50
pair "send bw, named device" ib_send_bw -R -F -d verbena_lo -x 0 -n 200
pair "send bw, type of service" ib_send_bw -R -F -T 32 -n 200
pair "send bw, shared receive queue" ib_send_bw -R -F --use-srq -n 200

datagrams_may_get_lost
pair "send bw UD" ib_send_bw -R -F -c UD -n 500
pair "send lat UD" ib_send_lat -R -F -c UD -n 500
pair "send bw UD, both ways" ib_send_bw -R -F -c UD -b -n 500
pair "send bw UD, 4 queue pairs" ib_send_bw -R -F -c UD -q 4 -n 200
pair "send bw UD, events" ib_send_bw -R -F -c UD -e -n 500
nothing_left
pass "$pairs_run pairs"
