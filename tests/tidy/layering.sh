#!/bin/bash
# Checks the rules for includes between folders, for pure code, and for the form of files. First verifies on
# a temporary tree that each rule detects a violation.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python3 "$here/layering.py" --self-test
python3 "$here/layering.py" "$here/../.."
