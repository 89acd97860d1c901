#!/bin/bash
# An idle process uses no CPU, independent of the number of its queue pairs and of other processes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need g++
enter_namespace "$@"
seconds=${VERBENA_IDLE_SECONDS:-10}

g++ -std=c++20 -O1 -Wno-missing-field-initializers -I "$root" "$root/tests/programs/idle.cc" -libverbs \
  -o "$work/idle" 2>"$logs/g++" || skip "idle.cc does not compile: are the verbs headers installed?"
for name in idle1 idle2; do
  start "$name" "$tool" run -- "$work/idle" verbena_lo
  await_line "$logs/$name" '^ready' 20 || fail "$name does not get ready"
done

# User and system time of a process in clock ticks (its name has no blanks).
ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }
# CPU time of all threads in nanoseconds; empty if the kernel does not report it.
nanoseconds() { cat "/proc/$1"/task/*/schedstat 2>/dev/null | awk '{sum += $1} END {if (NR) print sum}'; }

sleep 0.5  # lets the start-up work end
declare -A ticks_before=() ns_before=()
for name in idle1 idle2; do
  ticks_before[$name]=$(ticks "${pids[$name]}")
  ns_before[$name]=$(nanoseconds "${pids[$name]}")
done
sleep "$seconds"
for name in idle1 idle2; do
  used=$(($(ticks "${pids[$name]}") - ticks_before[$name]))
  [ "$used" -le 1 ] || fail "$name used $used clock ticks in $seconds idle seconds"
  if [ -n "${ns_before[$name]}" ]; then
    us=$((($(nanoseconds "${pids[$name]}") - ns_before[$name]) / 1000))
    [ "$us" -le $((seconds * 200)) ] || fail "$name used $us us of CPU in $seconds idle seconds"
    note "ok $name: $us us of CPU in $seconds s"
  fi
done
pass
