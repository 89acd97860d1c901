#!/bin/bash
# scripts/tidy.py, with a clang-tidy that warns of the word BAD: a warning fails, a clean file is not
# looked at again, and one is when it, a header that it includes, the checks or its flags change.
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
STUB
chmod +x bin/clang-tidy
flags() {
  echo "[{\"file\": \"$tree/src/one.cc\", \"command\": \"c++ $1\"}, {\"file\": \"$tree/src/two.cc\", \"command\": \"c++\"}]" \
    >build/compile_commands.json
}
flags -O2
echo 'Checks: all' >.clang-tidy
echo '#include "base/outer.h"' >src/one.cc
echo '#include "inner.h"' >src/base/outer.h
echo 'int inner();' >src/base/inner.h
echo 'int two() { return 2; }' >src/two.cc

# looked WHY FILE...: exactly these are looked at, and all is clean
looked() {
  local why=$1 saw
  shift
  saw=$(printf '%s\n' src/one.cc src/two.cc | PATH=$tree/bin:$PATH python3 -B scripts/tidy.py build 2 |
    sed -n 's/^\[.*\] //p' | sort | xargs)
  if [ "$saw" != "$*" ]; then echo "$why: looked at '$saw', not at '$*'"; exit 1; fi
}
looked "the first time" src/one.cc src/two.cc
looked "nothing changed"
echo 'int inner(int);' >src/base/inner.h
looked "a header's header changed" src/one.cc
flags -O3
looked "the flags changed" src/one.cc
echo 'Checks: more' >.clang-tidy
looked "the checks changed" src/one.cc src/two.cc
echo '// BAD' >>src/two.cc
for _ in first again; do
  if printf '%s\n' src/one.cc src/two.cc | PATH=$tree/bin:$PATH python3 -B scripts/tidy.py build 2 >out 2>&1; then
    echo "a warning did not fail"; exit 1
  fi
  grep -q '2:// BAD' out && grep -q '1 files to mend: src/two.cc' out || { cat out; exit 1; }
done
echo 'int two();' >src/two.cc
looked "mended" src/two.cc
echo "remembered: passed"
