# Sourced by symbols.sh here and in tests/rdmacm: compares a built library with the distribution's.
# shellcheck shell=bash
set -euo pipefail
build=${VERBENA_BUILD:?the build folder}

fail() { echo "symbols: $*" >&2; exit 1; }

# library NAME: sets ours, genuine and work; $work/genuine and $work/ours list the defined symbols.
library() {
  ours=$build/lib/$1.so.1
  genuine=${GENUINE_LIBRARY:-/usr/lib/$(uname -m)-linux-gnu/$1.so.1}
  [ -e "$ours" ] || fail "$ours is not built"
  if [ ! -e "$genuine" ]; then
    echo "symbols: no $1.so.1 of the distribution to compare with"
    exit 77
  fi
  [ "$(readlink -f "$ours")" != "$(readlink -f "$genuine")" ] || fail "both are the same file"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  exports "$genuine" > "$work/genuine"
  exports "$ours" > "$work/ours"
}

# "TYPE name@version SIZE" of each defined symbol, including version nodes. Sizes only for data.
exports() {
  readelf --dyn-syms -W "$1" |
    awk '$1 ~ /^[0-9]+:$/ && NF >= 8 && $7 != "UND" { print $4, $8, ($4 == "OBJECT" ? $3 : "-") }' |
    sort
}

missing() { comm -23 "$1" "$2"; }

# all_of LIST LEAST: ours has all symbols of LIST, and the comparison detects each missing one. Sets count.
all_of() {
  local type name size lost
  count=$(wc -l < "$1")
  [ "$count" -ge "$2" ] || fail "only $count symbols found in $genuine"
  # shellcheck disable=SC2094  # the list is only read
  while read -r type name size; do
    grep -vxF "$type $name $size" "$work/ours" > "$work/broken"
    [ -n "$(missing "$1" "$work/broken")" ] || fail "the check does not detect that $name is missing"
  done < "$1"
  lost=$(missing "$1" "$work/ours")
  [ -z "$lost" ] || fail "missing or different:"$'\n'"$lost"
}

# needs_only PATTERN: besides libc, ours needs only libraries that match PATTERN.
needs_only() {
  local others
  others=$(readelf -dW "$ours" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vxE "libc\.so\.6|ld-linux-x86-64\.so\.2|ld-linux-aarch64\.so\.1|$1" || true)
  [ -z "$others" ] || fail "needs other libraries: $others"
}

# has_names NAME: the SONAME, and the file name without a version, which some programs open first.
has_names() {
  local soname
  soname=$(readelf -dW "$ours" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
  [ "$soname" = "$1.so.1" ] || fail "SONAME is '$soname'"
  [ "$(readlink -f "$build/lib/$1.so")" = "$(readlink -f "$ours")" ] ||
    fail "$1.so does not link to $1.so.1"
}
