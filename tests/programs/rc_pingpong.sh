#!/bin/bash
# ibv_rc_pingpong on loopback: polling, events, checked contents, every size class and MTU.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong
enter_namespace "$@"
pingpong=(ibv_rc_pingpong -d verbena_lo -g 0)

pair "default" "${pingpong[@]}"
pair "events" "${pingpong[@]}" -e
pair "checked" "${pingpong[@]}" -c
pair "checked, events" "${pingpong[@]}" -c -e
for size in 1 2 7 8 63 64 1023 1024 1025 4095 4096 4097 65536 1048576; do
  pair "$size bytes" "${pingpong[@]}" -c -s "$size" -n 100
done
for mtu in 256 512 1024 2048 4096; do
  pair "MTU $mtu" "${pingpong[@]}" -c -m "$mtu" -s 100001 -n 50
  pair "MTU $mtu, events" "${pingpong[@]}" -c -e -m "$mtu" -s "$mtu" -n 200
done
pair "few receives" "${pingpong[@]}" -c -r 2 -n 2000
pair "IPv6" ibv_rc_pingpong -d verbena_lo -g 1 -c

# Options that a device may lack: the program must work or report that, not crash.
for option in -N -o -t; do
  take_port
  start optional.server "$tool" run -- "${pingpong[@]}" "$option" -p "$port"
  if await_listener "$port" optional.server; then
    start optional.client "$tool" run -- "${pingpong[@]}" "$option" -p "$port" "$host"
    finish_pair optional
    note "ok $option"
  else
    finish optional.server 5
    [ "$status" = 1 ] || fail "$option: exit status $status"
    grep -Eiq "support|capable|couldn't" "$logs/optional.server" || fail "$option: no reason is given"
    note "not supported: $option ($(tail -n 1 "$logs/optional.server"))"
  fi
done
nothing_left
pass "$pairs_run pairs"
