#!/bin/bash
# scripts/tidy.py with a clang-tidy that warns of the word BAD and of a file without flags: a warning fails,
# a clean file is not checked again until it, a header that it includes, the checks or its flags change.
# Files of a unity build are checked one by one.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$tree"
mkdir -p bin scripts src/base build
cp "$here/../../scripts/tidy.py" scripts/
cat >bin/clang-tidy <<'STUB'
#!/bin/bash
if [ "$1" = --version ]; then echo 1; exit; fi
if grep -n BAD "$2"; then exit 1; fi
[ "$3" = -p ] && python3 - "$2" "$4/compile_commands.json" <<'END'
import json, sys
flags = {entry["file"]: entry["command"] for entry in json.load(open(sys.argv[2]))}
sys.exit(not flags[sys.argv[1]].endswith(" " + sys.argv[1]))
END
STUB
chmod +x bin/clang-tidy
files=(src/four.cc src/one.cc src/three.cc src/two.cc)
unity=$tree/build/Unity/unity_0_cxx.cxx
mkdir build/Unity
printf '#include "%s"\n' "$tree/src/three.cc" "$tree/src/four.cc" >"$unity"
entry() { echo "{\"directory\": \"$tree/build\", \"file\": \"$1\", \"command\": \"c++ $2 -c $1\"}"; }
flags() { # of one.cc, of the unity build
  echo "[$(entry "$tree/src/one.cc" "$1"), $(entry "$tree/src/two.cc" -O2), $(entry "$unity" "$2")]" \
    >build/compile_commands.json
}
flags -O2 -O2
echo 'Checks: all' >.clang-tidy
echo '#include "base/outer.h"' >src/one.cc
echo '#include "inner.h"' >src/base/outer.h
echo 'int inner();' >src/base/inner.h
for name in two three four; do echo "int $name();" >src/$name.cc; done

# checks WHY FILE...: exactly these files are checked, without warnings
checks() {
  local why=$1 saw
  shift
  saw=$(printf '%s\n' "${files[@]}" | PATH=$tree/bin:$PATH python3 -B scripts/tidy.py build 2 |
    sed -n 's/^\[.*\] //p' | sort | xargs)
  if [ "$saw" != "$*" ]; then echo "$why: checked '$saw' instead of '$*'"; exit 1; fi
}
checks "the first time" "${files[@]}"
checks "nothing changed"
echo 'int inner(int);' >src/base/inner.h
checks "a header's header changed" src/one.cc
flags -O3 -O2
checks "the flags changed" src/one.cc
flags -O3 -O3
checks "the flags of those compiled as one changed" src/four.cc src/three.cc
echo 'Checks: more' >.clang-tidy
checks "the checks changed" "${files[@]}"
echo '// BAD' >>src/two.cc
for _ in first again; do
  if printf '%s\n' "${files[@]}" | PATH=$tree/bin:$PATH python3 -B scripts/tidy.py build 2 >out 2>&1; then
    echo "a warning did not fail"; exit 1
  fi
  grep -q '2:// BAD' out && grep -q '1 files have warnings: src/two.cc' out || { cat out; exit 1; }
done
echo 'int two() { return 2; }' >src/two.cc
checks "mended" src/two.cc
echo "remembered: passed"
