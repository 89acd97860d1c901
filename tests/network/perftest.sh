#!/bin/bash
# perftest and ibv_rc_pingpong, which checks every byte, cross a slow link: clean, with ECN, loss, reordering, a short
# queue. The statistics show that the fault occurred.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ib_write_bw ib_read_bw ib_send_bw ibv_rc_pingpong
enter_network "$@"

traffic() { # LABEL
  pair "$1: ib_write_bw" ib_write_bw -d verbena_tun0 -x 0 -F -s 65536 -n 60
  pair "$1: ib_read_bw" ib_read_bw -d verbena_tun0 -x 0 -F -s 65536 -n 40
  pair "$1: ib_send_bw, both ways, IPv6" ib_send_bw -d verbena_tun0 -x 1 -F -b -s 65536 -n 40
}
# Without losses only: with them, either side may end before the other has its last ACK (programs/namespaces.sh).
pingpong() { # LABEL
  pair "$1: ibv_rc_pingpong" ibv_rc_pingpong -d verbena_tun0 -g 0 -c -s 200000 -n 10
}

start_bottleneck --rate-mbit 1000 --delay-ms 1
traffic "1 Gb/s, 2 ms"
pingpong "1 Gb/s, 2 ms"
stop_bottleneck
expect_report 'to_near["packets"] > 5000 and to_near["lost"] == to_near["reordered"] == to_near["unread"] == 0'
expect_report 'any(flow["protocol"] == "udp" and flow["bytes"] > 60 * 65536 for flow in to_near["flows"])'

start_bottleneck --rate-mbit 1000 --delay-ms 1 --ecn-bytes 30000
traffic "ECN"
pingpong "ECN"
stop_bottleneck
expect_report 'to_near["lost"] == 0'

start_bottleneck --rate-mbit 1000 --delay-ms 1 --loss-percent 0.5 --seed 5
traffic "0.5 % lost"
stop_bottleneck
expect_report 'to_near["lost"] > 0 and to_near["reordered"] == 0'

start_bottleneck --rate-mbit 1000 --delay-ms 1 --reorder-percent 2 --reorder-ms 0.3 --seed 5
traffic "2 % held back"
pingpong "2 % held back"
stop_bottleneck
expect_report 'to_near["reordered"] > 0 and to_near["lost"] == 0'

start_bottleneck --rate-mbit 200 --queue-bytes 40000
traffic "200 Mb/s, 40 KB queue"
stop_bottleneck
expect_report 'to_near["queue_bytes"]["max"] <= 40000'
nothing_left
pass "$pairs_run pairs"
