#!/bin/bash
# cmtime: connects and disconnects many ids at once, step by step, and times each step.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need cmtime
enter_namespace "$@"
server_ends=no

run_case() { # LABEL ADDRESS OPTIONS...
  local label=$1 address=$2 step
  shift 2
  cm_pair "$label" cmtime -b :: -p %p -- cmtime -s "$address" -p %p "$@"
  expect_not client 'fail|error|abort'
  for step in 'create id' 'resolve addr' 'resolve route' 'create qp' connect disconnect destroy; do
    expect client "^$step *: +[0-9.]+"
  done
}
run_case "100 connections" 127.0.0.1
run_case "100 connections, IPv6" ::1
run_case "1000 connections" 127.0.0.1 -c 1000
run_case "bound, few retries" 127.0.0.1 -b 127.0.0.1 -c 50 -r 2 -t 1000
expect client '^bind addr'
nothing_left
pass "$pairs_run pairs"
