# Sourced by the scripts of this folder: unmodified programs on both sides of a slow link (build/bottleneck), in two
# network namespaces of this user. Needs no privileges besides access to /dev/net/tun.
# shellcheck shell=bash disable=SC2034
# shellcheck source-path=SCRIPTDIR source=../programs/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../programs/lib.sh"

# Called once, first: continues in namespaces of its own.
enter_network() {
  need ip nsenter python3
  enter_namespace "$@"
  [ "$own_namespace" = yes ] || skip "this system does not permit this user to create network namespaces"
  [ -x "$build/bottleneck" ] || skip "$build/bottleneck is not built"
  create_second_host
  "${there[@]}" ip link set lo up
  client_in=("${there[@]}")
  host=192.0.2.1
}

# start_bottleneck OPTIONS...: both sides have tun0, this side 192.0.2.1, the other side 192.0.2.2. A bottleneck that
# runs is replaced.
start_bottleneck() {
  [ -z "${pids[bottleneck]:-}" ] || stop_bottleneck
  start bottleneck "$build/bottleneck" --far "/proc/${pids[second_host]}/ns/net" "$@"
  if ! await_line_of_bottleneck ready; then
    finish bottleneck 1
    [ "$status" != 77 ] || skip "$(tail -n 1 "$logs/bottleneck")"
    fail "the bottleneck does not start: $*"
  fi
}
await_line_of_bottleneck() {
  local tries=200
  until grep -qs -- "$1" "$logs/bottleneck"; do
    kill -0 "${pids[bottleneck]}" 2>/dev/null || return 1
    [ $((tries--)) -gt 0 ] || return 1
    sleep 0.05
  done
}

# Ends the bottleneck; its statistics are then in $report.
stop_bottleneck() {
  kill -TERM "${pids[bottleneck]}"
  finish bottleneck 10
  [ "$status" = 0 ] || fail "the bottleneck's exit status is $status"
  report=$(tail -n 1 "$logs/bottleneck")
}

# expect_report EXPRESSION: Python, with the statistics of both directions as dictionaries. Programs of the other side
# send in the direction to_near.
expect_report() {
  python3 -c 'import json, sys; sys.exit(not eval(sys.argv[2], json.loads(sys.argv[1])))' "$report" "$1" ||
    fail "not true: $1; the bottleneck reports: $report"
}
