#!/bin/bash
# The recipes for continuous integration (examples/ci): the effect of the action's steps on the environment of a job,
# that the files refer to existing targets, and two_hosts.sh. deb.sh tests the package that they install.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_devices ib_write_bw python3
enter_namespace "$@"
recipes=$root/examples/ci
export PATH=$build:$PATH

# --- the action: its second step, as a runner would run it, and a later step of the same job
step=$(awk '/id: use/ {inside = 1} inside && /run: \|/ {text = 1; next} text {sub(/^        /, ""); print}' "$recipes/action.yml")
grep -q 'verbena env' <<<"$step" || fail "the action has no step that uses verbena env"
GITHUB_ENV=$work/env GITHUB_OUTPUT=$work/output DEVICES=lo bash -euo pipefail -c "$step" >"$logs/step" 2>&1 ||
  fail "the action's step: exit status $?"
grep -qx "libraries=$build/lib" "$work/output" || fail "the action does not output the path of the libraries"
xargs -d '\n' -a "$work/env" sh -c 'exec env "$@" ibv_devices' sh >"$logs/later" 2>&1 || fail "a later step: exit status $?"
[ "$(grep -c verbena_ "$logs/later")" = 1 ] || fail "a later step does not see exactly verbena_lo"
if python3 -c 'import yaml' 2>/dev/null; then
  python3 - "$recipes/action.yml" "$recipes/rdma-tests.yml" <<'PYTHON' || fail "a recipe is not the expected YAML"
import sys, yaml
action, workflow = (yaml.safe_load(open(f)) for f in sys.argv[1:])
assert action["runs"]["using"] == "composite" and all(s["shell"] for s in action["runs"]["steps"])
assert any("examples/ci@" in s.get("uses", "") for s in workflow["jobs"]["rdma"]["steps"])
PYTHON
fi
for target in $(grep -ohE 'make (deb|install)' -r "$recipes" | awk '{print $2}' | sort -u); do
  grep -q "^$target: ##" "$root/Makefile" || fail "there is no make $target"
done
note "ok the action"

# --- two hosts on one machine
if [ "$own_namespace" = yes ]; then
  run='verbena run -- ib_write_bw -d verbena_veth0 -x 0 -F -n 100'
  timeout 60 bash "$root/examples/two_hosts.sh" "$run" "$run 192.0.2.2" >"$logs/two" 2>&1 || fail "two_hosts.sh: status $?"
  grep -Eq '^ 65536 +100 ' "$logs/two" || fail "two_hosts.sh: no measurement"
  grep -q 'Mtu *: 4096' "$logs/two" || fail "two_hosts.sh: the MTU is not 4096"
  if timeout 60 bash "$root/examples/two_hosts.sh" true false >"$logs/two" 2>&1; then fail "two_hosts.sh does not report a failure"; fi
  note "ok two hosts"
fi
pass
