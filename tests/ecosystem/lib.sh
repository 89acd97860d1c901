# Sourced by the scripts of this folder: unmodified programs of the RDMA ecosystem, as Debian packages them.
# On top of tests/programs/lib.sh; each result also becomes a row of the table in docs/programs.md.
# shellcheck shell=bash source-path=SCRIPTDIR source=../programs/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../programs/lib.sh"

# row PROGRAM PACKAGE WHAT: adds a row that says that WHAT passed. PACKAGE "-": a program of ours.
row() {
  local version=
  [ "$2" = - ] || version=$(dpkg-query -W -f '${source:Upstream-Version}' "$2" 2>/dev/null || echo '?')
  note "ok $1 $version: $3"
  echo "| $1 | $version | $3 | passed |" >>"${VERBENA_ECOSYSTEM_TABLE:-/dev/null}"
}

# bounded COMMAND...: must succeed within $time_limit seconds, output in $logs/out.
bounded() {
  local status=0
  timeout -k 5 "$time_limit" "$@" >"$logs/out" 2>&1 || status=$?
  [ "$status" = 0 ] || fail "exit status $status: $*"
}
expect_output() { grep -Eq -- "$1" "$logs/out" || fail "it did not print: $1"; }

# The sum of a counter over all processes of this network namespace: counter_sum NAME.
counter_sum() { "$tool" counters --all | awk -v name="$1" '$1 == name {sum += $2} END {print sum + 0}'; }
