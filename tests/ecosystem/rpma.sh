#!/bin/bash
# librpma, used by a small program: write, flush, read back, send and receive.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need g++
[ -e /usr/include/librpma.h ] || skip "librpma-dev is not installed"
enter_namespace "$@"
time_limit=30
g++ -std=c++20 -O1 -o "$work/rpma_check" "$root/tests/ecosystem/rpma_check.cc" -lrpma -libverbs 2>"$logs/g++" ||
  fail "rpma_check.cc does not compile"
# librpma takes the device of its address by binding to it. Loopback addresses have none, as with the kernel's rdma_cm.
connect_second_host
cm_pair "rpma_check" "$work/rpma_check" listen 192.0.2.1 %p -- "$work/rpma_check" connect 192.0.2.1 %p
expect client '^ok$'
expect server '^ok$'
row librpma librpma0 "a program that writes, flushes, reads back, sends and receives"
remove_second_host
nothing_left
pass
