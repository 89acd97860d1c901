#!/bin/bash
# The house rules as a test: who may include whom, what pure code may not touch, and tidiness.
# First proves on a throw-away tree that each rule does fail when broken.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python3 "$here/layering.py" --self-test
python3 "$here/layering.py" "$here/../.."
