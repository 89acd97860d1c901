#!/bin/bash
# Hardening of every shipped file: immediate binding, RELRO, no executable stack, stack protector,
# _FORTIFY_SOURCE, and no RUNPATH relative to the working directory. First verifies that each check detects
# a file without the property.
set -euo pipefail
build=${VERBENA_BUILD:?the build folder}

fail() { echo "hardening: $*" >&2; exit 1; }

# Prints one word for each missing property of FILE.
faults() {
  local dynamic segments symbols paths
  dynamic=$(readelf -dW "$1")
  segments=$(readelf -lW "$1")
  symbols=$(readelf --dyn-syms -W "$1" | awk '$7 == "UND" {print $8}')
  grep -q 'FLAGS.*NOW' <<< "$dynamic" || echo lazy-binding
  grep -q GNU_RELRO <<< "$segments" || echo no-relro
  awk '$1 == "GNU_STACK" && $7 == "RW" {found = 1} END {exit !found}' <<< "$segments" || echo executable-stack
  grep -q '^__stack_chk_fail' <<< "$symbols" || echo no-stack-protector
  grep -qE '^__[a-z]+_chk(@|$)' <<< "$symbols" || echo no-fortify
  paths=$(sed -nE 's/.*\((RUNPATH|RPATH)\).*\[(.*)\]/\2/p' <<< "$dynamic")
  if [ -n "$paths" ] && tr ':' '\n' <<< "$paths" | grep -vE '^(\$ORIGIN|/)' >/dev/null; then
    echo relative-runpath
  fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'int main() { return 0; }' > "$work/bare.c"
plain=(g++ -x c -fno-stack-protector -U_FORTIFY_SOURCE "$work/bare.c" -o "$work/bare")
"${plain[@]}" -Wl,-z,lazy -Wl,-z,norelro -Wl,-z,execstack -Wl,-rpath,'$ORIGIN:'
detected=$(faults "$work/bare")
for fault in lazy-binding no-relro executable-stack no-stack-protector no-fortify relative-runpath; do
  grep -qx "$fault" <<< "$detected" || fail "the check does not detect $fault"
done

wrong=
for file in "$build"/verbena "$build"/lib/lib*.so* "$build"/lib/verbena-*; do
  [ ! -L "$file" ] || continue
  found=$(faults "$file" | tr '\n' ' ')
  # Its functions have the same names as those of libc, which fortifying would change; see CMakeLists.txt.
  [[ $file != *verbena-view* ]] || found=${found/no-fortify /}
  [ -z "$found" ] || wrong+="  ${file#"$build"/}: $found"$'\n'
done
[ -z "$wrong" ] || fail $'missing properties:\n'"$wrong"
echo "hardening: all shipped files"
