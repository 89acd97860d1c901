#!/bin/bash
# The manual explains everything that only Verbena has: each vendor_err and each environment variable.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
missing=0

# in_manual PATTERN HEADING WHAT: a line of that section of verbena(7) matches.
in_manual() {
  sed -n "/^\.SH $2\$/,/^\.SH /p" "$root/man/verbena.7" | grep -Ex "$1" >/dev/null && return
  echo "verbena(7) does not explain $3 under \"$2\""
  missing=1
}

errors=$(sed -nE 's/^inline constexpr uint32_t kVendor[A-Za-z]+ = ([0-9]+);$/\1/p' "$root/src/base/vendor_error.h")
variables=$(grep -Eo 'VERBENA_[A-Z_]+' "$root/src/runtime/config.h" | sort -u)
if [ -z "$errors" ] || [ -z "$variables" ]; then
  echo "nothing found in vendor_error.h or config.h"
  exit 1
fi
for error in $errors; do in_manual "\.B $error" "FAILED COMPLETIONS" "vendor_err $error"; done
for variable in $variables; do in_manual "\.B $variable" "ENVIRONMENT" "$variable"; done
exit $missing
