#!/bin/bash
# Runs every script of tests/ecosystem against BUILD and writes a table of results to BUILD/ecosystem.md:
# program, version, command, result. docs/programs.md shows such a table.
#   scripts/ecosystem.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(cd "$1" && pwd)
table=$build/ecosystem.md
output=$(mktemp)
trap 'rm -f "$output"' EXIT
printf '| program | version | what was run | result |\n|---|---|---|---|\n' >"$table"

failed=
for script in tests/ecosystem/*.sh; do
  name=$(basename "$script" .sh)
  [ "$name" != lib ] || continue
  echo "== $name"
  status=0
  VERBENA_BUILD=$build VERBENA_ECOSYSTEM_TABLE=$table timeout -k 10 900 bash "$script" >"$output" 2>&1 || status=$?
  cat "$output"
  case $status in
    0) ;;
    77) echo "| $name | | $(sed -n 's/^SKIPPED [^:]*: //p' "$output" | tail -n 1) | skipped |" >>"$table" ;;
    *)
      echo "| $name | | | FAILED |" >>"$table"
      failed="$failed $name"
      ;;
  esac
done
cat "$table"
echo "$((SECONDS / 60)) minutes and $((SECONDS % 60)) seconds"
[ -z "$failed" ] || { echo "test-ecosystem: FAILED:$failed" >&2; exit 1; }
