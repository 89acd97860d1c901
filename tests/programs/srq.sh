#!/bin/bash
# Shared receive queues and XRC: their pingpongs, and perftest over both.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_srq_pingpong ibv_xsrq_pingpong ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw \
  ib_atomic_bw
enter_namespace "$@"
srq=(ibv_srq_pingpong -d verbena_lo -g 0)
xsrq=(ibv_xsrq_pingpong -d verbena_lo -g 0)
perftest=(-d verbena_lo -x 0 -F)

# Its server ends when it has counted enough messages over all queue pairs, even if the client still waits. With many
# rounds, packets that were lost at the start are retransmitted by then.
pair "srq" "${srq[@]}" -n 8000
pair "srq, events" "${srq[@]}" -e -n 8000
pair "srq, 1 queue pair" "${srq[@]}" -q 1 -n 300
pair "srq, 200 queue pairs" "${srq[@]}" -q 200 -r 400 -n 8000
pair "srq, large, small MTU" "${srq[@]}" -s 100001 -m 256 -n 1000
pair "srq, IPv6" ibv_srq_pingpong -d verbena_lo -g 1 -n 8000

pair "xsrq" "${xsrq[@]}" -n 200
pair "xsrq, events" "${xsrq[@]}" -e -n 200
pair "xsrq, large, small MTU" "${xsrq[@]}" -s 100001 -m 256 -n 20

pair "send bw, srq" ib_send_bw "${perftest[@]}" --use-srq -n 500
pair "send bw, srq, 8 queue pairs" ib_send_bw "${perftest[@]}" --use-srq -q 8 -n 100
pair "send bw, srq, both ways" ib_send_bw "${perftest[@]}" --use-srq -b -n 500
pair "send bw, srq, events" ib_send_bw "${perftest[@]}" --use-srq -e -n 500
pair "send lat, srq" ib_send_lat "${perftest[@]}" --use-srq -n 200

pair "send bw, XRC" ib_send_bw "${perftest[@]}" -c XRC -n 500
pair "send bw, XRC, 4 queue pairs, events" ib_send_bw "${perftest[@]}" -c XRC -q 4 -e -n 100
pair "send bw, XRC, both ways" ib_send_bw "${perftest[@]}" -c XRC -b -n 500
pair "send lat, XRC" ib_send_lat "${perftest[@]}" -c XRC -n 200
pair "write bw, XRC" ib_write_bw "${perftest[@]}" -c XRC -n 500
pair "write bw, XRC, both ways" ib_write_bw "${perftest[@]}" -c XRC -b -n 500
pair "write lat, XRC" ib_write_lat "${perftest[@]}" -c XRC -n 200
pair "read bw, XRC" ib_read_bw "${perftest[@]}" -c XRC -n 500
pair "atomic bw, XRC" ib_atomic_bw "${perftest[@]}" -c XRC -n 500
nothing_left
pass "$pairs_run pairs"
