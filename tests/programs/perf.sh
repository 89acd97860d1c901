#!/bin/bash
# verbena perf: it measures or reports why it cannot, and its server survives misbehaving clients. The test checks
# the output, never the speed.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need python3
enter_namespace "$@"

perf() { # STATUS ARGUMENTS...: a client; its output in $logs/client
  local expected=$1
  shift
  start client "$tool" perf "$@"
  finish client 60
  [ "$status" = "$expected" ] || fail "perf $*: exit status $status instead of $expected"
}
prints() { grep -Eq -- "$1" "$logs/client" || fail "the client does not print: $1"; }
served() { await_line "$logs/server" "$1" 20 || fail "the server does not print: $1"; }

# --- without a server
perf 0 --help
prints 'Usage: verbena perf'
perf 2
prints 'HOST or --listen is missing'
perf 2 --listen 127.0.0.1
perf 2 127.0.0.1 --sizes 0
perf 2 127.0.0.1 --seconds never
perf 2 127.0.0.1 --seconds nan
perf 1 127.0.0.1
prints 'no server listens at 127\.0\.0\.1, port 7475; start `verbena perf --listen`'
perf 1 no.such.host.invalid
prints "unknown host 'no\.such\.host\.invalid'"
note "ok errors without a server"

# --- with one
start server "$tool" perf --listen --port 7500
served '^Listening on port 7500'
perf 1 127.0.0.1 --port 7501
prints 'no server listens'
start second "$tool" perf --listen --port 7500
finish second 20
[ "$status" = 1 ] || fail "a second server on the port: exit status $status"
grep -q 'port 7500 is taken' "$logs/second" || fail "the second server does not report that the port is in use"

short=(--port 7500 --seconds 0.02)
perf 0 127.0.0.1 "${short[@]}"
for size in '8 B' '4 KiB' '64 KiB' '1 MiB'; do prints "^ *$size \|( +[0-9.]+){2} \|( +[0-9.]+){2} \|( +[0-9.]+){2}$"; done
served '^(::ffff:)?127\.0\.0\.1 is done'
note "ok a table"

perf 0 ::1 "${short[@]}" --sizes 1,65537,4194304 --json
python3 - "$logs/client" <<'CHECK' || fail "the JSON is not as expected"
import json, sys
report = json.load(open(sys.argv[1]))
assert report["device"] == "verbena_lo" and report["path_mtu"] == 4096
assert [r["size"] for r in report["results"]] == [1, 65537, 4194304]
for result in report["results"]:
    for operation in ("write", "read", "send"):
        assert all(result[operation][key] > 0 for key in ("gbps", "messages_per_second", "latency_us"))
CHECK
note "ok JSON, IPv6, odd sizes"

# --- two clients at once: the second gets a message
start first "$tool" perf 127.0.0.1 --port 7500 --seconds 1 --sizes 64
await_line "$logs/first" 'by verbena_lo' 20 || fail "the first client does not connect"
perf 1 127.0.0.1 "${short[@]}"
prints 'measuring with another client'
finish first 60
[ "$status" = 0 ] || fail "the first client: exit status $status"
note "ok one client at a time"

# --- the server works after a client was killed during a measurement
start killed "$tool" perf 127.0.0.1 --port 7500 --seconds 5
await_line "$logs/killed" 'by verbena_lo' 20 || fail "the client does not connect"
kill -KILL "${pids[killed]}"
finish killed 5
for ((i = 0; i < 40; i++)); do
  start client "$tool" perf 127.0.0.1 "${short[@]}" --sizes 64
  finish client 60
  [ "$status" = 1 ] && grep -q 'another client' "$logs/client" || break
  sleep 0.5
done
[ "$status" = 0 ] || fail "after a client was killed: exit status $status"
note "ok a killed client"

# --- a server killed during a measurement
start orphan "$tool" perf 127.0.0.1 --port 7500 --seconds 5
await_line "$logs/orphan" 'by verbena_lo' 20 || fail "the client does not connect"
kill -KILL "${pids[server]}"
finish server 5
finish orphan 60
[ "$status" = 1 ] || fail "the server was killed: the client's exit status is $status"
note "ok a killed server: $(tail -n 1 "$logs/orphan")"

# --- on a lossy network, for one client only
start server "$tool" perf --listen --once
served '^Listening on port 7475'
start client "$tool" run --faults loss=0.01,seed=3 -- "$build/lib/verbena-perf" 127.0.0.1 --seconds 0.02
finish client 60
[ "$status" = 0 ] || fail "with loss: exit status $status"
finish server 20
[ "$status" = 0 ] || fail "--listen --once: exit status $status"
note "ok on a lossy network; --once ends"
nothing_left
pass
