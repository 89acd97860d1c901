#!/bin/bash
# The extended interfaces in programs: ibv_wr_*, extended completion queues and timestamps in ibv_rc_pingpong;
# inline data and ibv_wr_* in perftest, which uses them because it knows the part ID; asynchronous events of the
# port.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong ib_send_bw ib_write_bw ib_write_lat ib_read_bw ib_atomic_bw ibv_asyncwatch
enter_namespace "$@"
pingpong=(ibv_rc_pingpong -d verbena_lo -g 0 -n 200)

for options in -N -t "-N -t" "-N -c -s 100001"; do
  # shellcheck disable=SC2086
  pair "pingpong $options" "${pingpong[@]}" $options
done

# With -t and -e together the program treats an event as an error, "poll CQ failed 2" (ENOENT), if it already
# polled the completion with the event before. It requests the next event before it polls, so this happens on
# every NIC when two completions are close together. Such a run is repeated.
raced() { grep -qs 'poll CQ failed 2$' "$logs/pair.client" "$logs/pair.server"; }
await_end_or_race() {
  local tries=$((time_limit * 20))
  while kill -0 "${pids[pair.$1]}" 2>/dev/null && ! raced; do
    [ $((tries--)) -gt 0 ] || fail "pingpong: the $1 does not end"
    sleep 0.05
  done
}
timestamps_and_events() {
  local tries=20 side ended
  while [ $((tries--)) -gt 0 ]; do
    rm -f "$logs"/pair.*
    start_pair pair "${pingpong[@]}" "$@"
    ended=
    for side in client server; do
      # The peer of a side that gave up waits indefinitely.
      await_end_or_race "$side"
      if raced; then kill -KILL "${pids[pair.$side]}" 2>/dev/null || true; fi
      finish "pair.$side" "$time_limit"
      ended="$ended $status"
    done
    if [ "$ended" = " 0 0" ]; then
      pairs_run=$((pairs_run + 1))
      note "ok pingpong $*"
      return
    fi
    raced || fail "pingpong $*: exit statuses of client and server:$ended"
  done
  fail "pingpong $*: in each of 20 runs an event without a completion"
}
timestamps_and_events -N -t -e
timestamps_and_events -t -c -e

# perftest prints which interface it uses for posting.
export VERBENA_VENDOR_PART_ID=4119
pair_with_wr_api() {
  local label=$1
  shift
  pair "$label" "$@"
  grep -Eq 'ibv_wr\* API *: *ON' "$logs/pair.client" || fail "$label: not by ibv_wr_*"
}
pair_with_wr_api "send" ib_send_bw -d verbena_lo -x 0 -F -n 1000
pair_with_wr_api "send, inline" ib_send_bw -d verbena_lo -x 0 -F -I 64 -s 64 -n 1000
pair_with_wr_api "send, events" ib_send_bw -d verbena_lo -x 0 -F -e -n 500
pair_with_wr_api "send, lists" ib_send_bw -d verbena_lo -x 0 -F -l 16 -t 128 -n 1600 -s 64
pair_with_wr_api "write" ib_write_bw -d verbena_lo -x 0 -F -n 1000
pair_with_wr_api "write, inline" ib_write_lat -d verbena_lo -x 0 -F -I 64 -s 64 -n 500
pair_with_wr_api "read" ib_read_bw -d verbena_lo -x 0 -F -n 500
pair_with_wr_api "atomics" ib_atomic_bw -d verbena_lo -x 0 -F -n 500
unset VERBENA_VENDOR_PART_ID

# The test changes addresses and links only in its own namespace.
if [ "$own_namespace" = yes ]; then
  start watch "$tool" run -- ibv_asyncwatch -d verbena_lo
  await_line "$logs/watch" "async event FD" 10 || fail "ibv_asyncwatch does not start"
  ip address add 127.0.0.9/8 dev lo
  await_line "$logs/watch" "IBV_EVENT_GID_CHANGE" 10 || fail "no event for a new address"
  ip link set lo down
  await_line "$logs/watch" "IBV_EVENT_PORT_ERR" 10 || fail "no event for a port that went down"
  ip link set lo up
  await_line "$logs/watch" "IBV_EVENT_PORT_ACTIVE" 10 || fail "no event for a port that came up"
  kill -KILL "${pids[watch]}"
  finish watch 5
  note "ok asynchronous events of the port"
fi
nothing_left
pass "$pairs_run pairs"
