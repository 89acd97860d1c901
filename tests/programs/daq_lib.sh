# Sourced by the scripts for detector readout, after lib.sh.
# shellcheck shell=bash

# board NAME ADDRESS OPTIONS...: an emulated board that listens.
board() {
  local name=$1 address=$2
  shift 2
  start "$name" "$tool" fpga --listen "$address" --json "$@"
  await_line "$logs/$name" 'listens on UDP port' 20 || fail "board $address does not start"
}

# end_board NAME: ends the board. Its summary is then the last line of its output.
end_board() {
  local tries=200
  # The tool is replaced by the program, except for the command that start() runs in front of it.
  kill -TERM "$(family "${pids[$1]}" | tail -n 1)"
  finish "$1" 10
  [ "$status" = 0 ] || fail "board $1: exit status $status"
}

# recv STATUS OPTIONS...: writes its JSON to $work/recv.json and its log to $logs/recv.
recv() {
  local expected=$1
  shift
  rc=0
  timeout 120 "$tool" recv --json "$@" >"$work/recv.json" 2>"$logs/recv" || rc=$?
  [ "$rc" = "$expected" ] || fail "recv $*: exit status $rc instead of $expected"
}

# holds FILE EXPRESSION: a Python expression about the JSON `r` of the file is true.
holds() {
  python3 - "$1" "$2" <<'CHECK' || { cat "$1"; fail "not true of ${1##*/}: $2"; }
import json, sys
text = open(sys.argv[1]).read()
r = json.loads(text[text.rindex("\n{") if "\n{" in text and not text.startswith("{") else 0:])
sys.exit(0 if eval(sys.argv[2]) else 1)
CHECK
}
