#!/usr/bin/env bash
# Debian's perftest on Verbena over UDP loopback against what TCP and plain UDP do on the same machine in
# the same run. Runs are interleaved and medians compared, since machines are shared and noisy.
#   RUNS=3 bench/programs.sh
set -euo pipefail
build=${VERBENA_BUILD:-build}
runs=${RUNS:-3}
port=24100
server=
work=$(mktemp -d)
cleanup() {
  [[ -n $server ]] && kill "$server" 2>/dev/null || :
  rm -rf "$work"
}
trap cleanup EXIT

# A network namespace of our own where that is permitted: nobody else's traffic, nobody else's port.
if [[ -z ${VERBENA_BENCH_INSIDE:-} ]] && unshare -rn true 2>/dev/null; then
  trap - EXIT
  rm -rf "$work"
  VERBENA_BENCH_INSIDE=1 exec unshare -rn bash "$0" "$@"
fi
[[ -n ${VERBENA_BENCH_INSIDE:-} ]] && ip link set lo up

median() { sort -n | awk '{v[NR]=$1} END {print NR%2 ? v[(NR+1)/2] : (v[NR/2]+v[NR/2+1])/2}'; }

iperf() {  # Gb/s of one TCP stream
  port=$((port + 1))
  iperf3 -s -1 -p $port >"$work/server" 2>&1 & server=$!
  for _ in {1..50}; do ss -ltn "sport = :$port" | grep -q LISTEN && break; sleep 0.05; done
  iperf3 -c 127.0.0.1 -p $port -t 2 -f g -J |
    python3 -c 'import json,sys; print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"]/1e9)'
  wait "$server" || :
  server=
}

perftest() {  # perftest FIELD PROGRAM ARGS…: that column of the client's result line
  local field=$1; shift
  port=$((port + 1))
  "$build/verbena" run -- "$@" -d verbena_lo -x 0 -F -p $port >"$work/server" 2>&1 & server=$!
  for _ in {1..50}; do ss -ltn "sport = :$port" | grep -q LISTEN && break; sleep 0.05; done
  if ! timeout 60 "$build/verbena" run -- "$@" -d verbena_lo -x 0 -F -p $port 127.0.0.1 >"$work/client" 2>&1; then
    cat "$work/server" "$work/client" >&2
    return 1
  fi
  wait "$server" || :
  server=
  awk -v f="$field" '/^ *[0-9]+ +[0-9]+ /{v=$f} END {print v}' "$work/client"
}

for ((i = 0; i < runs; i++)); do
  iperf >>"$work/tcp"
  perftest 4 ib_write_bw -s 65536 -D 2 --report_gbits >>"$work/write64k"
  perftest 4 ib_write_bw -s 1048576 -D 2 --report_gbits >>"$work/write1m"
  perftest 4 ib_send_bw -s 65536 -D 2 --report_gbits >>"$work/send64k"
  perftest 4 ib_read_bw -s 65536 -D 2 --report_gbits >>"$work/read64k"
  "$build/udp_reference" stream 4136 >>"$work/udp"
  "$build/udp_reference" pingpong 64 >>"$work/pingpong"
  perftest 5 ib_send_lat -s 8 -n 20000 >>"$work/sendlat"
  perftest 5 ib_write_lat -s 8 -n 5000 >>"$work/writelat"
  perftest 5 ib_read_lat -s 8 -n 5000 >>"$work/readlat"
done

value() { median <"$work/$1"; }
row() { printf '%-44s %10.2f %-5s %8.2f  %s\n' "$1" "$2" "$3" "$4" "$5"; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {print a / b}'; }
tcp=$(value tcp) udp=$(value udp) pp=$(value pingpong)
echo "UDP loopback, ICRC on, path MTU 4096, $runs interleaved runs, medians; ratio to the reference named"
row 'iperf3 TCP, one stream' "$tcp" Gb/s 1 ''
row 'raw UDP, GSO/GRO trains of 4136 B' "$udp" Gb/s "$(ratio "$udp" "$tcp")" 'of TCP'
row 'ib_write_bw 64 KiB' "$(value write64k)" Gb/s "$(ratio "$(value write64k)" "$tcp")" 'of TCP (goal: at least 1)'
row 'ib_write_bw 1 MiB' "$(value write1m)" Gb/s "$(ratio "$(value write1m)" "$tcp")" 'of TCP'
row 'ib_send_bw 64 KiB' "$(value send64k)" Gb/s "$(ratio "$(value send64k)" "$tcp")" 'of TCP'
row 'ib_read_bw 64 KiB' "$(value read64k)" Gb/s "$(ratio "$(value read64k)" "$tcp")" 'of TCP'
row 'raw UDP ping-pong, half round trip' "$pp" us 1 ''
row 'ib_send_lat 8 B' "$(value sendlat)" us "$(ratio "$(value sendlat)" "$pp")" 'of raw UDP (goal: at most 2)'
row 'ib_write_lat 8 B (receiver spins on memory)' "$(value writelat)" us "$(ratio "$(value writelat)" "$pp")" 'of raw UDP (goal: at most 30 us)'
row 'ib_read_lat 8 B (full round trip)' "$(value readlat)" us "$(ratio "$(value readlat)" "$pp")" 'of raw UDP'
