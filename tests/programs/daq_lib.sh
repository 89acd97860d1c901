# Sourced by the scripts about detector readout, after lib.sh.
# shellcheck shell=bash

# board NAME ADDRESS OPTIONS...: an emulated board that listens.
board() {
  local name=$1 address=$2
  shift 2
  start "$name" "$tool" fpga --listen "$address" --json "$@"
  await_line "$logs/$name" 'listens on UDP port' 20 || fail "board $address does not start"
}

# end_board NAME: asks it to end; its summary is then the last line of its output.
end_board() {
  local tries=200
  # The tool becomes the program, but for what start() put in front of it.
  kill -TERM "$(family "${pids[$1]}" | tail -n 1)"
  finish "$1" 10
  [ "$status" = 0 ] || fail "board $1: exit status $status"
}

# recv STATUS OPTIONS...: its JSON in $work/recv.json, what it says in $logs/recv.
recv() {
  local expected=$1
  shift
  rc=0
  timeout 120 "$tool" recv --json "$@" >"$work/recv.json" 2>"$logs/recv" || rc=$?
  [ "$rc" = "$expected" ] || fail "recv $*: exit status $rc instead of $expected"
}

# holds FILE EXPRESSION: what Python thinks of an expression about the JSON `r` in it.
holds() {
  python3 - "$1" "$2" <<'CHECK' || { cat "$1"; fail "not true of ${1##*/}: $2"; }
import json, sys
text = open(sys.argv[1]).read()
r = json.loads(text[text.rindex("\n{") if "\n{" in text and not text.startswith("{") else 0:])
sys.exit(0 if eval(sys.argv[2]) else 1)
CHECK
}
