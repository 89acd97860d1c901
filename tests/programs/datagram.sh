#!/bin/bash
# UC and UD on loopback: the pingpongs and perftest. Nothing is retransmitted, so a program that waits for every
# message ends only if none is lost.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_uc_pingpong ibv_ud_pingpong ib_send_bw ib_send_lat ib_write_bw ib_write_lat
enter_namespace "$@"
datagrams_may_get_lost
uc=(ibv_uc_pingpong -d verbena_lo -g 0)
ud=(ibv_ud_pingpong -d verbena_lo -g 0)
perftest=(-d verbena_lo -x 0 -F)

pair "UC pingpong" "${uc[@]}"
pair "UC pingpong, events" "${uc[@]}" -e
pair "UC pingpong, checked" "${uc[@]}" -c -s 100001 -n 50
pair "UC pingpong, MTU 256" "${uc[@]}" -c -m 256 -s 5000 -n 100
pair "UC pingpong, IPv6" ibv_uc_pingpong -d verbena_lo -g 1 -c
pair "UD pingpong" "${ud[@]}"
pair "UD pingpong, events" "${ud[@]}" -e
pair "UD pingpong, checked" "${ud[@]}" -c -s 1024
pair "UD pingpong, checked, events" "${ud[@]}" -c -e -s 512
pair "UD pingpong, IPv6" ibv_ud_pingpong -d verbena_lo -g 1 -c

for type in UC UD; do
  pair "send bw $type" ib_send_bw "${perftest[@]}" -c $type -n 1000
  pair "send bw $type, small" ib_send_bw "${perftest[@]}" -c $type -s 64 -n 2000
  pair "send bw $type, both ways" ib_send_bw "${perftest[@]}" -c $type -b -n 500
  pair "send bw $type, events" ib_send_bw "${perftest[@]}" -c $type -e -n 500
  pair "send bw $type, 4 queue pairs" ib_send_bw "${perftest[@]}" -c $type -q 4 -n 200
  pair "send lat $type" ib_send_lat "${perftest[@]}" -c $type -n 500
  pair "send lat $type, events" ib_send_lat "${perftest[@]}" -c $type -e -n 200
done
pair "send bw UC, long" ib_send_bw "${perftest[@]}" -c UC -s 65536 -n 100
pair "send bw UD, inline" ib_send_bw "${perftest[@]}" -c UD -I 64 -s 64 -n 1000
pair "write bw UC" ib_write_bw "${perftest[@]}" -c UC -n 200
pair "write bw UC, both ways" ib_write_bw "${perftest[@]}" -c UC -b -n 100
pair "write bw UC, small" ib_write_bw "${perftest[@]}" -c UC -s 64 -n 1000
pair "write lat UC" ib_write_lat "${perftest[@]}" -c UC -n 500
nothing_left
pass "$pairs_run pairs"
