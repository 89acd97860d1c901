#!/bin/bash
# The verbena command: its environment variables, messages and exit statuses.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ip
enter_namespace "$@"

# try STATUS COMMAND...: output in $logs/out and $logs/err; the exit status must be as given.
try() {
  local expected=$1 status=0
  shift
  "$@" >"$logs/out" 2>"$logs/err" </dev/null || status=$?
  [ "$status" = "$expected" ] || fail "'$*': exit status $status instead of $expected"
}
out() { grep -Eq -- "$1" "$logs/out" || fail "standard output does not contain: $1"; }
err() { grep -Eq -- "$1" "$logs/err" || fail "standard error does not contain: $1"; }
no_err() { [ ! -s "$logs/err" ] || fail "standard error is not empty"; }

# --- help and usage
try 0 "$tool" --version
out '^verbena [0-9]+\.[0-9]+\.[0-9]+$'
for command in run devices doctor counters env; do
  try 0 "$tool" "$command" --help
  out 'Usage: verbena '
  out 'Examples:'
done
try 0 "$tool" --help
out 'verbena COMMAND --help'
try 2 "$tool"
err 'Usage: verbena'
try 2 "$tool" frobnicate
err '^verbena: .*frobnicate'
try 2 "$tool" devices --frobnicate
err '--frobnicate'
try 2 "$tool" counters notanumber
err 'notanumber'
try 125 "$tool" run --frobnicate -- true
err '--frobnicate'
note "ok help and usage"

# --- output that cannot be written is a failure
for command in --version --help 'devices --help' 'devices --json' 'doctor --json' counters env 'perf --help' 'recv --help' \
  'fpga --listen 127.0.0.2 --seconds 0.1' 'daq-sweep --sizes 64 --depths 1 --seconds 0.05'; do
  rc=0
  # shellcheck disable=SC2086
  timeout 30 "$tool" $command >/dev/full 2>"$logs/err" || rc=$?
  [ "$rc" = 1 ] || fail "$command >/dev/full: exit status $rc"
  err 'standard output cannot be written|cannot write to file'
done
note "ok output that cannot be written"

# --- run: the environment
try 0 env -u LD_LIBRARY_PATH "$tool" run -- sh -c 'echo "$LD_LIBRARY_PATH"'
[ "$(cat "$logs/out")" = "$build/lib" ] || fail "LD_LIBRARY_PATH is not the library's folder"
try 0 env LD_LIBRARY_PATH=/some/where "$tool" run -- sh -c 'echo "$LD_LIBRARY_PATH"'
[ "$(cat "$logs/out")" = "$build/lib:/some/where" ] || fail "LD_LIBRARY_PATH lost its old value"
try 0 env LD_LIBRARY_PATH= "$tool" run -- "$tool" run -- sh -c 'echo "$LD_LIBRARY_PATH"'
[ "$(cat "$logs/out")" = "$build/lib" ] || fail "LD_LIBRARY_PATH grows when run is nested"
try 0 "$tool" run -d lo -d verbena_lo --log info --log-file /tmp/l --pcap '/tmp/%p.pcap' \
  --faults loss=0.5,seed=3 -- env
out '^VERBENA_DEVICES=lo,verbena_lo$'
out '^VERBENA_LOG=info$'
out '^VERBENA_LOG_FILE=/tmp/l$'
out '^VERBENA_PCAP=/tmp/%p.pcap$'
out '^VERBENA_FAULTS=loss=0.5,seed=3$'
try 0 env VERBENA_LOG=error "$tool" run -- env
out '^VERBENA_LOG=error$'
if grep -q '^VERBENA_PCAP' "$logs/out"; then fail "VERBENA_PCAP is set without --pcap"; fi
note "ok run sets the environment"

# --- run: passes arguments unchanged
try 0 "$tool" run -- printf '<%s>' a 'b c' '' -- --help -x
[ "$(cat "$logs/out")" = '<a><b c><><--><--help><-x>' ] || fail "arguments are changed"
try 0 "$tool" run printf '<%s>' --log -- x
[ "$(cat "$logs/out")" = '<--log><--><x>' ] || fail "arguments are changed without --"
try 0 "$tool" run --log info printf '<%s>' --log
[ "$(cat "$logs/out")" = '<--log>' ] || fail "the program's options are treated as those of verbena run"
note "ok run passes arguments unchanged"

# --- run: exit statuses and messages
try 0 "$tool" run -- true
no_err
try 7 "$tool" run -- sh -c 'exit 7'
try 127 "$tool" run -- no-such-program-here
err 'no-such-program-here: not found in PATH'
try 127 "$tool" run -- ./no/such/file
err 'no such file'
echo data >"$work/data"
try 126 "$tool" run -- "$work/data"
err 'cannot be executed'
try 126 "$tool" run -- "$work"
err 'cannot be executed'
printf '#!/no/such/interpreter\n' >"$work/script"
chmod +x "$work/script"
try 127 "$tool" run -- "$work/script"
err 'interpreter is missing'
try 125 "$tool" run
err 'the program is missing'
try 125 "$tool" run --
err 'the program is missing'
try 125 "$tool" run --log loud -- true
err 'loud'
try 125 "$tool" run --faults loss=2 -- true
err 'number from 0 to 1'
try 125 "$tool" run --faults lose=0.1 -- true
err 'unknown fault'
try 0 "$tool" run --device no_such -- true
err 'warning: --device no_such: .*no such interface'
note "ok run's errors"

# --- run: programs that would not load the library
if command -v g++ >/dev/null; then
  echo 'int main() {}' >"$work/main.cc"
  if g++ -static "$work/main.cc" -o "$work/static" 2>/dev/null; then
    try 0 "$tool" run -- "$work/static"
    err 'warning: .*statically linked'
  fi
  g++ "$work/main.cc" -o "$work/dynamic"
  try 0 "$tool" run -- "$work/dynamic"
  no_err
fi
# A set-uid program of root, run by another user.
setuid=$(command -v su || true)
if [ -u "$setuid" ] && [ "$(stat -c %u "$setuid")" != "$(id -u)" ]; then
  "$tool" run -- "$setuid" --version >"$logs/out" 2>"$logs/err" || true
  err 'warning: .*set-uid'
fi
note "ok run's warnings"

# --- a tool without its library
cp "$tool" "$work/verbena"
try 125 "$work/verbena" run -- true
err 'libibverbs.so.1 is neither'
try 1 "$work/verbena" env
err 'libibverbs.so.1 is neither'
mkdir "$work/lib"
touch "$work/lib/libibverbs.so.1"
try 0 "$work/verbena" env
out "^export LD_LIBRARY_PATH='$work/lib"
note "ok the library's folder"

# --- env
try 0 env -u LD_LIBRARY_PATH "$tool" env --device "it's" --log debug
eval "$(cat "$logs/out")"
[ "$LD_LIBRARY_PATH" = "$build/lib" ] || fail "env: LD_LIBRARY_PATH is $LD_LIBRARY_PATH"
[ "$VERBENA_DEVICES" = "it's" ] || fail "env: quoting"
[ "$VERBENA_LOG" = debug ] || fail "env: VERBENA_LOG"
[ "$NCCL_GIN_TYPE" = 2 ] || fail "env: NCCL_GIN_TYPE is $NCCL_GIN_TYPE"
try 0 env NCCL_GIN_TYPE=3 "$tool" env
! grep -q NCCL_GIN_TYPE "$logs/out" || fail "env: changes NCCL_GIN_TYPE"
unset NCCL_GIN_TYPE LD_LIBRARY_PATH VERBENA_DEVICES VERBENA_LOG
note "ok env"

# --- devices
try 0 "$tool" devices
out '^verbena_lo$'
out 'port +active'
out 'RoCE MTU +4096 bytes: .* 65536'
out 'GUID +([0-9a-f]{4}:){3}[0-9a-f]{4}$'
out '0 +RoCEv2 +127\.0\.0\.1 \(IPv4\)'
try 1 env VERBENA_DEVICES=none "$tool" devices
out 'No usable RDMA device'
out 'lo not used: VERBENA_DEVICES is none'
try 0 "$tool" devices --json
if command -v python3 >/dev/null; then
  python3 - "$logs/out" <<'PYTHON' || fail "devices --json is not as expected"
import json, sys
report = json.load(open(sys.argv[1]))
lo = [d for d in report["devices"] if d["name"] == "verbena_lo"][0]
assert lo["up"] and lo["active_mtu"] == 4096 and lo["loopback"], lo
assert lo["gids"][0]["address"] == "127.0.0.1", lo
assert isinstance(report["unusable"], list) and isinstance(report["problems"], list)
PYTHON
fi
if [ "$own_namespace" = yes ]; then
  ip link add veth0 type veth peer name veth1
  ip link set veth1 addrgenmode none
  ip link set veth0 up
  ip link set veth1 up
  await_carrier veth0
  ip address add 192.0.2.1/24 dev veth0
  ip link add veth2 type veth peer name veth3
  try 0 "$tool" devices -v
  out '^verbena_veth0$'
  out 'RoCE MTU +1024 bytes: .* 1500'
  out '4096 needs 4188, on every hop: ip link set veth0 mtu 4188'
  out '0000:0000:0000:0000:0000:ffff:c000:0201'
  out 'veth1 has no IP address'
  out 'veth2 is down: ip link set veth2 up'
  [ "$(grep -m 1 '^verbena_' "$logs/out")" = verbena_veth0 ] || fail "loopback is listed first"
  ip link set lo down
  try 0 "$tool" devices
  out 'lo is down: ip link set lo up'
  ip link set lo up
fi
note "ok devices"

# --- counters
try 1 "$tool" counters $$
err "process $$ is not a Verbena process"
try 1 "$tool" counters 4194303
err 'there is no process 4194303'
try 2 "$tool" counters 0
if [ "$own_namespace" = yes ]; then
  try 0 "$tool" counters
  out '^No process uses Verbena'
fi
note "ok counters"
pass
