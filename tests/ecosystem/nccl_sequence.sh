#!/bin/bash
# NCCL's use of libibverbs, sysfs and queue pairs, by a program that links no RDMA library.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need g++
enter_namespace "$@"
time_limit=30
g++ -std=c++20 -O1 -o "$work/sequence" "$root/tests/ecosystem/nccl_sequence.cc" -ldl 2>"$logs/g++" ||
  fail "nccl_sequence.cc does not compile"
bounded "$tool" run -- "$work/sequence"
expect_output '^ok: verbena_lo, GID index 0, /sys/devices/virtual/infiniband/verbena_lo/device$'
row "NCCL's call sequence" - "a test program: dlopen, dlvsym, GID types in sysfs, WRITE with immediate, READ to flush"
nothing_left
pass
